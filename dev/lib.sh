# shellcheck shell=bash
# Shared functions of the scripts in dev/: directories, ports, processes, waiting. Source this file;
# do not run it.

set -euo pipefail

# shellcheck disable=SC2034 # for the scripts that source this
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
# Set by claim_ports and read_ports, and by running.
declare -A port=()
pid=

CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/lockkeeper

# All files written here may contain a password or a key.
umask 077

say() { printf '%s\n' "$*" >&2; }
die() {
    say "error: $*"
    exit 1
}

# ---------------------------------------------------------------- instances

# Creates an instance directory and prints its absolute path. A set of servers keeps all
# its state in one such directory, so that several sets can run in parallel.
instance_dir() {
    mkdir -p "$1" || die "cannot create $1"
    (cd "$1" && pwd -P)
}

# Serializes commands on one server of one instance. The descriptor stays open until the
# script ends. spawn closes it for the servers, which would otherwise hold the lock
# indefinitely.
lock() {
    exec 8>"$1"
    flock -w 180 8 || die "another dev/ command has held $1 for 3 minutes: wait for it or end it, then try again"
}

# Generates a password for this instance and keeps it in a file. Its fixed prefix is a
# canary: wherever it appears in a log or an event, a password has leaked.
password() {
    if [ ! -s "$1" ]; then
        printf 'canary-%s' "$(openssl rand -hex 16)" >"$1.new"
        mv "$1.new" "$1"
    fi
    cat "$1"
}

# Prints a short hash of a directory's path.
digest() { printf '%s' "$1" | sha256sum | cut -c1-"${2:-10}"; }

# DIR/env consists of parts, one per server, because servers start in parallel and separately.
# write_env DIR PART: reads the part from stdin.
write_env() {
    local dir=$1 part=$2
    mkdir -p "$dir/env.d"
    cat >"$dir/env.d/.$part.new"
    mv "$dir/env.d/.$part.new" "$dir/env.d/$part"
    (
        flock 9
        cat "$dir"/env.d/* >"$dir/.env.new"
        mv "$dir/.env.new" "$dir/env"
    ) 9>"$dir/.env.lock"
}

# ---------------------------------------------------------------- built programs

# The directory of dev/build-servers' programs. Named by a hash of the module files, so
# that a checkout with other versions has its own directory.
servers_dir() {
    printf '%s/servers/%s' "$CACHE" "$(cd "$ROOT/dev/go/servers" && cat go.mod go.sum | sha256sum | cut -c1-12)"
}

# The directory of evaluate. Its source is in this repository, so it is separate: a change
# must not rebuild the servers.
evaluator_dir() {
    printf '%s/evaluators/%s' "$CACHE" \
        "$(cd "$ROOT/dev/go/servers" && cat go.mod go.sum evaluate/* | sha256sum | cut -c1-12)"
}

# java_dir NAME: the directory of the programs that dev/java/NAME.xml lists. Named by a hash of that
# file, so that a checkout with other versions has its own.
java_dir() {
    printf '%s/%s/%s' "$CACHE" "$1" "$(sha256sum "$ROOT/dev/java/$1.xml" | cut -c1-12)"
}

# fetch_java NAME WHAT: fetches them into the user's cache, with Maven, unless they exist.
fetch_java() {
    local programs log
    programs=$(java_dir "$1")
    [ ! -e "$programs/complete" ] || return 0
    need mvn java
    mkdir -p "$CACHE/$1"
    exec 6>"$CACHE/$1/.lock"
    flock -w 300 6 || die "another process has held $CACHE/$1/.lock for 5 minutes: wait for it or end it"
    # Another process was faster.
    [ ! -e "$programs/complete" ] || return 0
    say "fetching $2 into $programs (once)"
    rm -rf "$programs"
    log=$(mktemp)
    mvn --batch-mode --file "$ROOT/dev/java/$1.xml" \
        org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies \
        -DoutputDirectory="$programs" </dev/null >"$log" 2>&1 || {
        tail -n 30 "$log" >&2
        die "Maven could not fetch $2; the end of its output is above"
    }
    rm -f "$log"
    : >"$programs/complete"
    exec 6>&-
}

# The path of kube-apiserver, etcd, kubectl, …, whether it exists or not.
server_program() {
    if [ "$1" = evaluate ]; then
        printf '%s/evaluate' "$(evaluator_dir)"
    elif [ -n "${KUBEBUILDER_ASSETS:-}" ] && [ -x "$KUBEBUILDER_ASSETS/$1" ]; then
        printf '%s' "$KUBEBUILDER_ASSETS/$1"
    else
        printf '%s/%s' "$(servers_dir)" "$1"
    fi
}

# The path of valkey-server: the installed one, otherwise that of dev/valkey.
valkey_server() {
    command -v valkey-server || printf '%s/valkey/root/usr/bin/valkey-server' "$CACHE"
}

# The path of promtool: the installed one, otherwise that of dev/promtool.
promtool_program() {
    command -v promtool || printf '%s/promtool/root/usr/bin/promtool' "$CACHE"
}

# The URL of the Debian mirror that this machine already uses.
debian_mirror() {
    local codename mirror
    codename=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")
    # shellcheck disable=SC2016 # apt's own variable
    mirror=$(apt-get indextargets --format '$(REPO_URI)' "Codename: $codename" 2>/dev/null | head -n 1)
    mirror=${mirror:-http://deb.debian.org/debian}
    printf '%s' "${mirror%/}"
}

# unpack_debian NAME PROGRAM BY_HAND MORE PACKAGE...: unpacks the packages of this Debian
# release that contain PROGRAM, or also of its suite MORE (backports), into
# $CACHE/NAME/root, without installing them. BY_HAND describes the alternative for the
# user.
unpack_debian() {
    local name=$1 program=$2 by_hand=$3 more=$4 home=$CACHE/$1 codename mirror work suite package
    local keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    shift 4
    if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
        die "$name is missing, and this is no Debian: $by_hand"
    fi
    codename=$(. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}")
    [ -e "$keyring" ] || die "$name is missing, and so is $keyring to check it by: $by_hand"
    mkdir -p "$home"
    exec 8>"$home/.lock"
    flock -w 300 8 || die "another dev/$name has held $home/.lock for 5 minutes: wait for it or end it"
    # Another process was faster.
    ! "$home/root/usr/bin/$program" --version >/dev/null 2>&1 || return 0

    say "fetching $name into $home (once)"
    work=$(mktemp -d)
    # shellcheck disable=SC2064 # the folder of now
    trap "rm -rf '$work'" EXIT
    mkdir -p "$work/lists/partial" "$work/archives/partial"
    mirror=$(debian_mirror)
    for suite in "$codename" ${more:+"$codename-$more"}; do
        printf 'deb [signed-by=%s] %s %s main\n' "$keyring" "$mirror" "$suite"
    done >"$work/sources.list"
    # Separate lists and archives, so that any user may run this. The system's status
    # shows which packages are installed.
    private() {
        local command=$1
        shift
        "$command" -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=- \
            -o Dir::Etc::preferencesparts=- -o Dir::Etc::preferences=- \
            -o Dir::State::lists="$work/lists" -o Dir::Cache="$work" \
            -o APT::Sandbox::User= -o Debug::NoLocking=1 "$@" >>"$work/log" 2>&1
    }
    (cd "$work" && private apt-get update && private apt-get download "$@") || {
        tail -n 20 "$work/log" >&2
        die "fetching $* from $mirror failed; the end of its output is above. Else $by_hand"
    }
    rm -rf "$home/root.new"
    for package in "$work"/*.deb; do dpkg-deb -x "$package" "$home/root.new"; done
    rm -rf "$home/root"
    mv "$home/root.new" "$home/root"
}

# ---------------------------------------------------------------- ports

# Returns whether a process listens on the port, on any address.
listening() {
    local hex
    printf -v hex '%04X' "$1"
    grep -hqs "^ *[0-9]*: [0-9A-F]*:$hex [0-9A-F]*:[0-9A-F]* 0A " /proc/net/tcp /proc/net/tcp6
}

# claim_ports FILE NAME...: sets port[NAME] for each name and saves the numbers in FILE,
# so that a restarted server listens on the same port. Numbers are below the ephemeral
# range, because any client connection can occupy a port above its start. A register in
# the user's cache keeps the claims of stopped sets from being reused.
claim_ports() {
    local file=$1 name number owner tries line registry=$CACHE/ports
    shift
    mkdir -p "$CACHE"
    exec 7>"$registry.lock"
    flock 7

    local -A taken=()
    local kept=()
    while read -r number owner; do
        # A claim lasts as long as the file that contains it.
        if [ "$owner" != "$file" ] && grep -qs "=$number\$" "$owner"; then
            taken[$number]=1
            kept+=("$number $owner")
        fi
    done < <(cat "$registry" 2>/dev/null)

    read_ports "$file"
    for name in "$@"; do
        number=${port[$name]:-}
        tries=0
        while [ -z "$number" ] || [ -n "${taken[$number]:-}" ] || listening "$number"; do
            tries=$((tries + 1))
            [ "$tries" -le 2000 ] || die "found no free port between 20000 and 29999: stop some servers (make down)"
            number=$((20000 + (RANDOM * 32768 + RANDOM) % 10000))
        done
        taken[$number]=1
        port[$name]=$number
    done

    for name in "${!port[@]}"; do
        printf '%s=%s\n' "$name" "${port[$name]}"
        kept+=("${port[$name]} $file")
    done >"$file.new"
    mv "$file.new" "$file"
    for line in "${kept[@]}"; do printf '%s\n' "$line"; done >"$registry.new"
    mv "$registry.new" "$registry"
    exec 7>&-
}

# read_ports FILE: sets port[NAME] for every saved port, without claiming any.
read_ports() {
    local name number
    while IFS='=' read -r name number; do
        port[$name]=$number
    done < <(cat "$1" 2>/dev/null)
}

# ---------------------------------------------------------------- processes

# The start time of a process, in ticks since this boot. Together with the boot's id it
# distinguishes a process from a later one with the same id.
birth() {
    local stat boot
    # The process may end between the two reads. Then there is no start time.
    { read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 1
    read -r boot </proc/sys/kernel/random/boot_id
    # The second field, the program's name, may contain spaces and parentheses.
    stat=${stat##*) }
    # shellcheck disable=SC2086 # split on purpose: the fields of stat
    set -- $stat
    # A zombie has ended.
    [ "$1" != Z ] || return 1
    printf '%s %s' "${20}" "$boot"
}

# running PIDFILE: returns whether the process that spawn wrote there is alive; sets pid.
running() {
    local was
    pid=
    [ -s "$1" ] && [ -s "$1.birth" ] || return 1
    pid=$(<"$1")
    was=$(<"$1.birth")
    [ "$(birth "$pid")" = "$was" ]
}

# spawn PIDFILE LOG COMMAND...: starts a server that outlives this shell and its terminal.
# The server inherits no descriptor: an inherited lock would never be released, and
# readers of this script's output would wait for the end of an inherited pipe.
spawn() {
    local pidfile=$1 log=$2
    shift 2
    # shellcheck disable=SC2016 # expanded by the inner shell
    setsid bash -c '
        pidfile=$1; shift
        for fd in /proc/self/fd/*; do
            fd=${fd##*/}
            if [ "$fd" -gt 2 ]; then eval "exec $fd>&-"; fi
        done
        echo $$ >"$pidfile.new"
        mv "$pidfile.new" "$pidfile"
        exec "$@"
    ' spawn "$pidfile" "$@" </dev/null >>"$log" 2>&1 &
    local child=$!
    # Not a group leader (scripts have no job control), so setsid did not fork.
    birth "$child" >"$pidfile.birth" || true
    printf '%s\n' "$child" >"$pidfile"
}

# end PIDFILE SIGNAL SECONDS NAME: sends the signal to a spawned process and waits until
# it has ended. Kills it after the deadline.
end() {
    local pidfile=$1 signal=$2 seconds=$3 name=$4 pid
    if running "$pidfile"; then
        kill -s "$signal" "$pid" 2>/dev/null || true
        if ! poll "$seconds" gone "$pidfile"; then
            say "$name (pid $pid) did not stop within ${seconds}s: killed"
            kill -s KILL "$pid" 2>/dev/null || true
            poll 10 gone "$pidfile" || die "$name (pid $pid) survives SIGKILL"
        fi
    fi
    rm -f "$pidfile" "$pidfile.birth"
}

gone() { ! running "$1"; }

# ---------------------------------------------------------------- waiting

# poll SECONDS COMMAND...: waits until the command succeeds. Fails at the deadline.
poll() {
    local deadline=$((${EPOCHREALTIME/[.,]/} + $1 * 1000000))
    shift
    until "$@"; do
        [ "${EPOCHREALTIME/[.,]/}" -lt "$deadline" ] || return 1
        sleep 0.05
    done
}

# await_server NAME PIDFILE LOG SECONDS COMMAND...: waits until the server responds. If it
# ends or does not respond, prints the end of its log and the next step.
await_server() {
    local name=$1 pidfile=$2 log=$3 seconds=$4 state=0
    shift 4
    # shellcheck disable=SC2317 # called by poll
    answers_or_died() {
        "$@" && return 0
        if ! running "$pidfile"; then
            state=died
            return 0
        fi
        return 1
    }
    poll "$seconds" answers_or_died "$@" || state=silent
    [ "$state" = 0 ] && return 0
    say "--- the end of $log"
    tail -n 25 "$log" >&2 2>/dev/null || true
    say "---"
    case $state in
        died) die "$name ended while starting; its log is above. To begin afresh: make down, then remove $(dirname "$pidfile")" ;;
        *) die "$name (pid $pid) did not answer within ${seconds}s; its log is above. The machine may be busy: try again, it carries on where it stopped" ;;
    esac
}

# need PROGRAM...: fails before the first step if a program is missing.
need() {
    local program
    for program in "$@"; do
        command -v "$program" >/dev/null || die "$program is missing: run dev/install"
    done
}

# foreign_python PACKAGE: prints the path of a Python with this package (name==version), which
# foreign clients and tests need. It is in target/foreign-venv.
foreign_python() {
    local venv=$ROOT/target/foreign-venv name=${1%%=*}
    if ! compgen -G "$venv/lib/python3*/site-packages/${name//-/_}-${1##*=}.dist-info" >/dev/null; then
        say "installing $1 into target/foreign-venv"
        [ -x "$venv/bin/pip" ] || /usr/bin/python3 -m venv --clear "$venv" ||
            die "python3 -m venv failed: install Debian's python3-venv"
        "$venv/bin/pip" install --quiet --disable-pip-version-check "$1"
    fi
    printf '%s\n' "$venv/bin/python"
}
