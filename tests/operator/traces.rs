//! Logs in JSON, and traces: the data that a collector of OTLP over HTTP gets from an
//! operator and from `lockkeeper exec`, and that an unresponsive collector delays
//! nothing.

use std::process::Stdio;
use std::time::{Duration, Instant};

use lockkeeper_api::Semaphore;
use lockkeeper_testkit::built;
use lockkeeper_testkit::canaries::Canaries;
use lockkeeper_testkit::collector::{Collector, attribute, text};
use lockkeeper_testkit::world::{PATIENCE, World, eventually, has, in_a_world};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::process::Command;

/// Checks that a collector got data, and that it contains neither a password nor a key.
fn nothing_secret_in(collector: &Collector) {
    let got = collector.bodies();
    assert!(!got.is_empty());
    for body in got {
        Canaries::now().not_in("a trace", &String::from_utf8_lossy(&body));
    }
}

fn hexadecimal(bytes: &[u8]) -> String {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from_digit(digit.into(), 16).unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_gets_each_reconcile_with_its_steps_and_no_password() {
    in_a_world("traces", async |world| {
        let collector = Collector::start(Duration::ZERO).await;
        let environment = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address.as_str()),
            ("OTEL_BSP_SCHEDULE_DELAY", "200"),
            ("OTEL_SERVICE_NAME", "locks-of-the-test"),
            ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test"),
        ];
        let mut operator = world.operator_in(&environment, &["--observe-interval=1s"]).await;
        operator.until_ready().await;
        world.semaphore("deploy", "slots: 2").await;
        world.queue("frames", "bound: 2").await;
        world.semaphore_ready("deploy").await;
        world.queue_ready("frames").await;
        let wrong = world.amqp_url().replace("canary-", "canary-wrong-");
        world.secret("wrong", &[("amqpUri", wrong)]).await;
        let spec = "{rabbitmqClusterReference: {connectionSecret: {name: wrong}}, slots: 1}";
        world.apply::<Semaphore>("refused", spec).await.unwrap();
        world
            .until("refused", "refused", PATIENCE, |s: &Semaphore| {
                has(s, "BackendReachable", "False")
            })
            .await;

        let of =
            |object: &'static str| move |span: &Span| text(span, "name").as_deref() == Some(object);
        // 2 is an error.
        let failed = |span: &Span| span.status.as_ref().is_some_and(|status| status.code == 2);
        collector.span("reconcile", |span| of("refused")(span) && failed(span)).await;
        let converge = collector.span("converge", |_| true).await;
        assert_eq!(text(&converge, "backend.type").as_deref(), Some("rabbitmq"));
        let of_converge = |span: &Span| span.span_id == converge.parent_span_id;
        let reconcile = collector.span("reconcile", of_converge).await;
        assert_eq!(reconcile.trace_id, converge.trace_id);
        assert_eq!(text(&reconcile, "controller").as_deref(), Some("semaphore"));
        assert_eq!(text(&reconcile, "namespace").as_ref(), Some(&world.namespace));
        assert!(text(&reconcile, "reconcileID").is_some_and(|id| id.len() == 16));
        let of_redis = |span: &Span| text(span, "backend.type").as_deref() == Some("redis");
        let look = collector.span("observe", of_redis).await;
        let of_look = |span: &Span| span.span_id == look.parent_span_id;
        let queue = collector.span("reconcile", of_look).await;
        assert_eq!(text(&queue, "name").as_deref(), Some("frames"));
        let requests = collector.requests();
        let resource = requests[0].resource_spans[0].resource.as_ref().unwrap();
        let resource = format!("{resource:?}");
        assert!(resource.contains("locks-of-the-test"), "{resource}");
        assert!(resource.contains("deployment.environment"), "{resource}");

        // The last spans are sent when it stops.
        assert!(operator.stop().await.success());
        nothing_secret_in(&collector);
        // It removes the remaining objects.
        world.operator().await;
    })
    .await;
}

/// Runs `lockkeeper exec sem/deploy` with these variables. Returns its command's output.
async fn exec(world: &World, environment: &[(&str, &str)], script: &str) -> String {
    let output = Command::new(built::lockkeeper())
        .args(["exec", "sem/deploy", "-n", &world.namespace, "--", "sh", "-c", script])
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_continues_a_trace_and_hands_it_on_to_its_command() {
    in_a_world("traces-exec", async |world| {
        let _operator = world.operator().await;
        world.semaphore("deploy", "slots: 1").await;
        world.semaphore_ready("deploy").await;
        let (trace, parent) = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331");
        let given = format!("00-{trace}-{parent}-01");
        let print = "printf %s \"$TRACEPARENT\"";

        let without = exec(&world, &[("TRACEPARENT", &given)], print).await;
        assert_eq!(without, given, "without a collector it is as it was");

        let collector = Collector::start(Duration::ZERO).await;
        let environment =
            [("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address.as_str()), ("TRACEPARENT", &given)];
        let handed_on = exec(&world, &environment, print).await;
        let spans = collector.spans();
        let one = |name: &str| {
            let found: Vec<&Span> = spans.iter().filter(|span| span.name == name).collect();
            assert_eq!(found.len(), 1, "{name} among {spans:?}");
            found[0].clone()
        };
        let (exec, hold) = (one("exec"), one("lock.hold"));
        assert_eq!(hexadecimal(&exec.parent_span_id), parent);
        assert_eq!(handed_on, format!("00-{trace}-{}-01", hexadecimal(&hold.span_id)));
        let (acquire, release) = (one("lock.acquire"), one("lock.release"));
        for span in [&acquire, &hold, &release] {
            assert_eq!(hexadecimal(&span.trace_id), trace);
            assert_eq!(span.parent_span_id, exec.span_id);
        }
        assert_eq!(attribute(&acquire, "lock.acquired"), Some(Value::BoolValue(true)));
        assert_eq!(text(&hold, "lock.name"), Some(format!("{}.deploy", world.namespace)));
        assert!(acquire.end_time_unix_nano <= hold.start_time_unix_nano);
        assert!(hold.end_time_unix_nano <= release.start_time_unix_nano);
        nothing_secret_in(&collector);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_does_not_answer_delays_neither_an_operator_nor_a_command() {
    in_a_world("traces-slow", async |world| {
        let collector = Collector::start(Duration::from_hours(1)).await;
        let environment = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address.as_str()),
            ("OTEL_BSP_SCHEDULE_DELAY", "50"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "4"),
            ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2"),
        ];
        let mut operator = world.operator_in(&environment, &["--observe-interval=200ms"]).await;
        operator.until_ready().await;
        world.semaphore("deploy", "slots: 1").await;
        world.semaphore_ready("deploy").await;
        let asked = async || !collector.bodies().is_empty();
        eventually("the collector is asked", PATIENCE, asked).await;
        world.semaphore("deploy", "slots: 2").await;
        world.semaphore_ready("deploy").await;
        let start = Instant::now();
        assert_eq!(exec(&world, &environment, "echo done").await, "done\n");
        // Its limit is two seconds; the rest is for a busy machine.
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        let start = Instant::now();
        assert!(operator.stop().await.success());
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        world.operator().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn traces_that_cannot_be_sent_are_named_and_those_that_are_off_are_off() {
    in_a_world("traces-off", async |world| {
        let collector = Collector::start(Duration::ZERO).await;
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.address.as_str());
        let _operator = world.operator().await;
        world.semaphore("deploy", "slots: 1").await;
        world.semaphore_ready("deploy").await;
        for off in [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")] {
            exec(&world, &[endpoint, off], "true").await;
        }
        let grpc = [endpoint, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")];
        let mut operator = world.operator_in(&grpc, &[]).await;
        operator.until_ready().await;
        let logged = operator.logged();
        assert!(logged.contains("only http/protobuf is built in"), "{logged}");
        operator.stop().await;
        assert_eq!(collector.bodies().len(), 0, "nothing was sent");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_line_of_a_reconcile_is_a_json_object_that_names_its_object() {
    in_a_world("json", async |world| {
        let operator = world.operator_in(&[], &["--log-format=json"]).await;
        world.semaphore("deploy", "slots: 1").await;
        world.semaphore_ready("deploy").await;
        let of_the_event = || {
            let logged = operator.logged();
            // The last line may be incomplete.
            let mut lines = logged.lines().filter_map(|line| serde_json::from_str(line).ok());
            lines.find(|line: &serde_json::Value| {
                line["message"] == "in sync" || line["message"] == "event"
            })
        };
        eventually("its event is logged", PATIENCE, async || of_the_event().is_some()).await;
        let line = of_the_event().unwrap();
        assert_eq!(line["controller"], "semaphore", "{line}");
        assert_eq!(line["namespace"], world.namespace, "{line}");
        assert_eq!(line["name"], "deploy", "{line}");
        assert_eq!(line["reconcileID"].as_str().map(str::len), Some(16), "{line}");
        assert_eq!(line["level"], "INFO", "{line}");
        line["timestamp"].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
    })
    .await;
}
