# One row of the table of dev/prove, from the report.json of one run.
def given($number): .grades[] | select(.number == $number)
    | {yes: "yes", no: "**no**", not_given: "not given"}[.given];
def violated: [.verdict.violations[] | "\(.rule // .property) \(.cause)"] | unique | join(", ");
"| \($title): \($section) | \(given(0)) | \(given(1)) | \($cost) | \([violated, $remark] | map(select(. != "")) | join("; ")) |"
