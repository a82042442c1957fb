//! The chart's rendered objects for different values, object by object.

use lockkeeper_api::all_crds;
use serde_json::{Value, json};

use crate::chart::{FULL, WITHOUT, documents, is_foreign, kubectl, of_kind, rendered, rendered_as};

fn kinds(objects: &[Value]) -> Vec<&str> {
    objects.iter().map(|object| object["kind"].as_str().unwrap()).collect()
}

fn definitions(values: &str) -> Vec<Value> {
    let objects = rendered("lockkeeper-system", values).into_iter();
    objects.filter(|object| object["kind"] == "CustomResourceDefinition").collect()
}

#[test]
fn the_definitions_are_a_part_of_the_release_and_what_the_types_give_now() {
    let mut bare = definitions("crds: {keep: false}");
    for definition in &mut bare {
        let labels = definition["metadata"].as_object_mut().unwrap().remove("labels").unwrap();
        assert_eq!(labels["app.kubernetes.io/instance"], "other");
    }
    let name = |crd: &Value| crd["metadata"]["name"].as_str().unwrap().to_owned();
    let mut types: Vec<Value> =
        all_crds().iter().map(|crd| serde_json::to_value(crd).unwrap()).collect();
    bare.sort_by_key(name);
    types.sort_by_key(name);
    assert_eq!(bare, types, "run `make generate`");
    assert!(definitions("crds: {install: false}").is_empty());
}

#[test]
fn the_definitions_stay_at_an_uninstall_unless_they_are_not_to() {
    let annotations = |values: &str| -> Vec<Value> {
        definitions(values).iter().map(|crd| crd["metadata"]["annotations"].clone()).collect()
    };
    let keep = "helm.sh/resource-policy";
    assert_eq!(annotations(""), vec![json!({keep: "keep"}); 2]);
    assert_eq!(
        annotations("crds: {annotations: {a: b}}"),
        vec![json!({keep: "keep", "a": "b"}); 2]
    );
    assert_eq!(annotations("crds: {keep: false, annotations: {a: b}}"), vec![json!({"a": "b"}); 2]);
    assert_eq!(annotations("crds: {keep: false}"), vec![Value::Null; 2]);
}

#[test]
fn disabled_parts_are_left_out() {
    let objects = rendered("lockkeeper-system", WITHOUT);
    assert_eq!(kinds(&objects), ["Deployment"]);
    let deployment = &objects[0];
    assert_eq!(deployment["spec"]["template"]["spec"]["serviceAccountName"], "mine");
    assert_eq!(deployment["spec"]["strategy"]["type"], "Recreate");
    assert_eq!(deployment["metadata"]["name"], "keeper");
    let by_default = rendered("lockkeeper-system", "");
    for kind in ["NetworkPolicy", "PodDisruptionBudget", "Service", "ConfigMap"] {
        assert!(!kinds(&by_default).contains(&kind), "{kind}");
    }
}

#[test]
fn only_cluster_wide_objects_are_outside_of_the_releases_namespace() {
    for values in ["", FULL] {
        for object in rendered("lockkeeper-system", values) {
            let (kind, metadata) = (object["kind"].as_str().unwrap(), &object["metadata"]);
            let shared = kind.starts_with("Cluster")
                || kind.starts_with("ValidatingAdmissionPolicy")
                || kind == "CustomResourceDefinition"
                || metadata["name"].as_str().unwrap().starts_with("extra-");
            assert!(shared || metadata["namespace"] == "lockkeeper-system", "{object}");
        }
    }
}

#[test]
fn two_renderings_are_the_same_so_that_git_shows_no_difference() {
    assert_eq!(rendered("here", FULL), rendered("here", FULL));
}

#[test]
fn the_pod_is_as_the_values_say() {
    let objects = rendered("lockkeeper-system", FULL);
    let deployment = of_kind(&objects, "Deployment");
    assert_eq!(deployment["spec"]["replicas"], 3);
    assert_eq!(deployment["spec"]["strategy"]["type"], "RollingUpdate");
    let pod = &deployment["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    let digest = "0123456789abcdef".repeat(4);
    assert_eq!(container["image"], format!("images.example.com/lockkeeper@sha256:{digest}"));
    assert_eq!(container["args"].as_array().unwrap().last().unwrap(), "--drift-interval=2m");
    assert_eq!(container["env"].as_array().unwrap().last().unwrap()["name"], "TZ");
    assert_eq!(container["volumeMounts"][0]["name"], pod["volumes"][0]["name"]);
    let spread = &pod["topologySpreadConstraints"];
    assert_eq!(spread[0]["labelSelector"], deployment["spec"]["selector"]);
    assert_eq!(spread[1]["labelSelector"], json!({"matchLabels": {"a": "b"}}));
    // Neither probe checks more than the operator itself.
    for (probe, path) in [("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")] {
        assert_eq!(container[probe]["httpGet"], json!({"path": path, "port": "http"}));
        assert_eq!(container[probe]["failureThreshold"], 4);
    }

    let tagged = rendered("lockkeeper-system", "image: {tag: \"9\"}");
    let container = &of_kind(&tagged, "Deployment")["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["image"], "lockkeeper:9");
}

#[test]
fn the_roles_for_people_are_added_to_the_clusters_own_where_enabled() {
    let own = |values: &str| -> Vec<(String, Vec<String>)> {
        let roles = rendered("lockkeeper-system", values).into_iter();
        let roles = roles.filter(|role| role["kind"] == "ClusterRole");
        let labels = |role: &Value| -> Vec<String> {
            let labels = role["metadata"]["labels"].as_object().unwrap().keys();
            let to = labels.filter_map(|label| label.split_once("aggregate-to-"));
            to.map(|(_, role)| role.to_owned()).collect()
        };
        let roles = roles
            .map(|role| (role["metadata"]["name"].as_str().unwrap().to_owned(), labels(&role)));
        roles.filter(|(_, to)| !to.is_empty()).collect()
    };
    let [(view, to_view), (edit, to_edit)] = &own("")[..] else { panic!("{:?}", own("")) };
    assert!(view.ends_with("-view") && edit.ends_with("-edit"), "{view} {edit}");
    assert_eq!(
        (&to_view[..], &to_edit[..]),
        (&["view".to_owned()][..], &["admin".to_owned(), "edit".to_owned()][..])
    );
    let only_view = "rbac: {aggregateToEdit: false, aggregateToAdmin: false}";
    assert_eq!(own(only_view), [(view.clone(), to_view.clone())]);
    assert!(own("rbac: {userRoles: false}").is_empty());
}

#[test]
fn openshift_chooses_the_user_id_itself() {
    let security = |values: &str, arguments: &[&str]| {
        let objects = rendered_as("other", "lockkeeper-system", values, arguments).unwrap();
        of_kind(&objects, "Deployment")["spec"]["template"]["spec"]["securityContext"].clone()
    };
    let mode = |mode| {
        format!("global: {{compatibility: {{openshift: {{adaptSecurityContext: {mode}}}}}}}")
    };
    let openshift = ["--api-versions", "security.openshift.io/v1"];
    assert_eq!(security("", &[])["runAsUser"], 65532);
    assert_eq!(security("", &openshift)["runAsUser"], Value::Null);
    assert_eq!(security("", &openshift)["runAsNonRoot"], true);
    assert_eq!(security(&mode("force"), &[])["runAsUser"], Value::Null);
    assert_eq!(security(&mode("disabled"), &openshift)["runAsUser"], 65532);
}

#[test]
fn monitoring_objects_are_left_out_where_the_cluster_has_no_such_kinds() {
    let wanted = "{metrics: {serviceMonitor: {enabled: true}}, rules: {enabled: true}}";
    let foreign = |arguments: &[&str]| {
        let objects = rendered_as("other", "lockkeeper-system", wanted, arguments).unwrap();
        // Prometheus may discover the Service by other means, so it always exists.
        assert_eq!(of_kind(&objects, "Service")["spec"]["ports"][0]["targetPort"], "http");
        objects.into_iter().filter(is_foreign).collect::<Vec<Value>>()
    };
    assert!(foreign(&[]).is_empty());
    let known = |kind| format!("monitoring.coreos.com/v1/{kind}");
    let (monitor, rule) = (known("ServiceMonitor"), known("PrometheusRule"));
    let found = foreign(&["--api-versions", &monitor, "--api-versions", &rule]);
    assert_eq!(kinds(&found), ["PrometheusRule", "ServiceMonitor"]);
    let objects = rendered("lockkeeper-system", wanted);
    let selected = &found[1]["spec"]["selector"]["matchLabels"];
    assert_eq!(&of_kind(&objects, "Service")["spec"]["selector"], selected);
}

#[test]
fn the_alerts_and_the_dashboard_are_those_of_the_charts_files() {
    let file = |name: &str| {
        let file = format!("{}/charts/lockkeeper/files/{name}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(file).unwrap()
    };
    let objects = rendered("lockkeeper-system", FULL);
    let based = "runbook_url: https://git.example.com/lockkeeper/docs/";
    let rules = file("rules.yaml").replace("runbook_url: docs/", based);
    let rules: Value = serde_yaml::from_str(&rules).unwrap();
    assert!(rules["groups"][0]["rules"][0]["expr"].is_string(), "{rules}");
    assert_eq!(of_kind(&objects, "PrometheusRule")["spec"], rules);
    let maps = objects.iter().filter(|object| object["kind"] == "ConfigMap");
    let dashboards: Vec<&Value> =
        maps.filter(|map| map["metadata"]["labels"]["grafana_dashboard"] == "1").collect();
    let text = dashboards[0]["data"]["lockkeeper.json"].as_str().unwrap();
    let of = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    assert_eq!(of(text), of(&file("dashboard.json")));
}

#[test]
fn policies_are_about_the_watched_namespaces_only() {
    let bindings = |values: &str| -> Vec<Value> {
        let objects = rendered("lockkeeper-system", values).into_iter();
        objects.filter(|o| o["kind"] == "ValidatingAdmissionPolicyBinding").collect()
    };
    let everywhere = bindings("");
    assert!(everywhere.len() >= 6, "{}", everywhere.len());
    assert!(everywhere.iter().all(|binding| binding["spec"]["matchResources"].is_null()));
    for binding in bindings("watchNamespaces: [team-a]") {
        let only = &binding["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"];
        assert_eq!(only[0]["values"], json!(["team-a"]), "{binding}");
    }
}

#[test]
fn the_network_policy_lets_the_operator_reach_its_servers() {
    let objects = rendered("lockkeeper-system", FULL);
    let policy = &of_kind(&objects, "NetworkPolicy")["spec"];
    let selected = &of_kind(&objects, "Deployment")["spec"]["selector"];
    assert_eq!(&policy["podSelector"], selected);
    let ports: Vec<i64> = policy["egress"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|rule| rule["ports"].as_array().unwrap())
        .map(|port| port["port"].as_i64().unwrap())
        .collect();
    assert_eq!(ports, [53, 53, 8443, 5671, 5672, 15671, 15672, 6379, 26379, 4318]);
    assert_eq!(policy["ingress"][0]["ports"][0]["port"], "http");
}

#[test]
fn more_objects_may_be_templates() {
    let objects = rendered("lockkeeper-system", FULL);
    for name in ["extra-map", "extra-text"] {
        let object = objects.iter().find(|object| object["metadata"]["name"] == name).unwrap();
        assert_eq!(object["data"]["release"], "other");
    }
}

/// The information that a marketplace shows about the chart.
#[test]
fn the_charts_annotations_name_its_kinds_with_examples() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/charts/lockkeeper/Chart.yaml");
    let chart = &documents(&std::fs::read_to_string(file).unwrap())[0];
    let annotation = |name: &str| -> Vec<Value> {
        let text = chart["annotations"][format!("artifacthub.io/{name}")].as_str().unwrap();
        serde_yaml::from_str(text).unwrap()
    };
    let listed: Vec<Value> = annotation("crds").iter().map(|crd| crd["name"].clone()).collect();
    let names: Vec<Value> =
        all_crds().iter().map(|crd| crd.metadata.name.clone().unwrap().into()).collect();
    assert_eq!(listed, names);
    let examples = annotation("crdsExamples");
    assert_eq!(kinds(&examples), ["Semaphore", "PressureQueue"]);
    crate::chart::kubectl(&crate::chart::DRY_RUN, Some(&examples)).unwrap();
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn the_patch_in_the_installation_guide_adds_what_the_chart_adds_for_default_connections() {
    let guide = include_str!("../../docs/installing.md");
    let (_, patch) = guide.split_once("-n lockkeeper-system --patch '\n").unwrap();
    let (patch, _) = patch.split_once("'\n```").unwrap();
    let deployment = |values| {
        let objects = rendered("lockkeeper-system", values);
        of_kind(&objects, "Deployment").clone()
    };
    let arguments = ["patch", "--local", "-f", "-", "-o", "json", "--patch", patch];
    let patched = kubectl(&arguments, Some(&[deployment("")])).unwrap();
    let patched: Value = serde_json::from_str(&patched).unwrap();
    let by_chart = "defaultConnections: {secretName: lockkeeper-default-connections}";
    // The order of a list's entries says nothing here.
    let pod = |deployment: &Value| {
        let mut pod = deployment["spec"]["template"]["spec"].clone();
        for list in ["env", "volumeMounts"] {
            let entries = pod["containers"][0][list].as_array_mut().unwrap();
            entries.sort_by_key(|entry| entry["name"].to_string());
        }
        pod
    };
    assert_eq!(pod(&patched), pod(&deployment(by_chart)));
}
