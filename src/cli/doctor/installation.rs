//! Checks whether the installation is complete and consistent: the resource definitions,
//! the operator, and the permissions of its account.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, PostParams};
use kube::{Api, ResourceExt};
use lockkeeper_api::all_crds;

use super::finding::Finding;
use crate::cli::kubernetes::Cluster;
use crate::operator::api_error::explain;

/// Label selector of the operator's Deployment, independent of the release name.
const OPERATOR: &str = "app.kubernetes.io/name=lockkeeper";

/// Permissions that the operator's account needs in each namespace: group, resource,
/// subresource, verbs.
const RIGHTS: &[(&str, &str, &str, &[&str])] = &[
    ("lockkeeper.dev", "semaphores", "", &["list", "watch", "patch"]),
    ("lockkeeper.dev", "pressurequeues", "", &["list", "watch", "patch"]),
    ("lockkeeper.dev", "semaphores", "status", &["patch"]),
    ("lockkeeper.dev", "pressurequeues", "status", &["patch"]),
    ("", "secrets", "", &["get"]),
    ("events.k8s.io", "events", "", &["create", "patch"]),
];

/// Maximum number of namespaces whose permissions are checked. Each takes a dozen
/// requests.
const MAX_NAMESPACES: usize = 10;

/// Checks whether the resource definitions are installed and match this program.
pub(super) async fn definitions(cluster: &Cluster) -> Vec<Finding> {
    let api: Api<CustomResourceDefinition> = Api::all(cluster.client.clone());
    let mut findings = Vec::new();
    for ours in all_crds() {
        let about = format!("crd/{}", ours.name_any());
        let found = match api.get_opt(&ours.name_any()).await {
            Ok(found) => found,
            Err(error) => {
                findings.push(Finding::remark(
                    about,
                    format!("can't be read: {}", explain(&error)),
                    "ask a user with permission to read CustomResourceDefinitions",
                ));
                continue;
            }
        };
        let Some(found) = found else {
            findings.push(Finding::wrong(
                about,
                "is not installed",
                "install the chart, or `lockkeeper crds | kubectl apply --server-side -f -`",
            ));
            continue;
        };
        findings.push(if schema(&found) == schema(&ours) {
            Finding::ok(about, "is installed, and is the one of this version")
        } else {
            Finding::remark(
                about,
                format!("is not the one of version {}", env!("CARGO_PKG_VERSION")),
                "if this program is the newer one: `lockkeeper crds | kubectl apply --server-side -f -`; else update this program",
            )
        });
    }
    findings
}

fn schema(definition: &CustomResourceDefinition) -> Vec<serde_json::Value> {
    let schemas = definition.spec.versions.iter().map(|version| {
        let schema = version.schema.as_ref().and_then(|all| all.open_api_v3_schema.as_ref());
        serde_json::to_value(schema).unwrap_or_default()
    });
    schemas.collect()
}

/// Checks whether the operator runs, in which version, and with which permissions.
pub(super) async fn operator(
    cluster: &Cluster,
    its_namespace: Option<&str>,
    namespaces: &[String],
) -> Vec<Finding> {
    let api: Api<Deployment> = match its_namespace {
        Some(namespace) => Api::namespaced(cluster.client.clone(), namespace),
        None => Api::all(cluster.client.clone()),
    };
    let deployments = match api.list(&ListParams::default().labels(OPERATOR)).await {
        Ok(found) => found.items,
        Err(error) => {
            let next =
                "ask a user with permission to list Deployments, or set --operator-namespace";
            return vec![Finding::remark(
                "operator",
                format!("can't be looked for: {}", explain(&error)),
                next,
            )];
        }
    };
    if deployments.is_empty() {
        return vec![Finding::remark(
            "operator",
            format!("no Deployment has the label {OPERATOR}"),
            "install the chart, unless the operator runs elsewhere",
        )];
    }
    let mut findings = Vec::new();
    for deployment in &deployments {
        findings.push(is_running(deployment));
        findings.extend(rights(cluster, deployment, namespaces).await);
    }
    findings
}

fn is_running(deployment: &Deployment) -> Finding {
    let (name, namespace) = (deployment.name_any(), deployment.namespace().unwrap_or_default());
    let about = format!("operator {namespace}/{name}");
    let ready = deployment.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or(0);
    if ready == 0 {
        let next = format!(
            "`kubectl -n {namespace} describe deployment {name}`, `kubectl -n {namespace} logs deployment/{name}`"
        );
        return Finding::wrong(about, "no pod of it is ready", next);
    }
    let version = deployment.labels().get("app.kubernetes.io/version").cloned();
    let ours = env!("CARGO_PKG_VERSION");
    match version {
        Some(version) if version != ours => Finding::remark(
            about,
            format!("runs version {version}, and this program is version {ours}"),
            "update the older one",
        ),
        Some(version) => Finding::ok(about, format!("runs version {version}")),
        None => Finding::ok(about, "runs; its version is not known"),
    }
}

/// Checks whether the operator's account has the permissions that the chart grants.
async fn rights(cluster: &Cluster, deployment: &Deployment, namespaces: &[String]) -> Vec<Finding> {
    let its_namespace = deployment.namespace().unwrap_or_default();
    let pod = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let account = pod.and_then(|pod| pod.service_account_name.clone());
    let account = account.unwrap_or_else(|| "default".to_owned());
    let about = format!("serviceaccount {its_namespace}/{account}");
    let mut missing = Vec::new();
    for namespace in namespaces.iter().take(MAX_NAMESPACES) {
        for (group, resource, subresource, verbs) in RIGHTS {
            for verb in *verbs {
                let attributes = ResourceAttributes {
                    group: Some((*group).to_owned()),
                    resource: Some((*resource).to_owned()),
                    subresource: Some((*subresource).to_owned()).filter(|name| !name.is_empty()),
                    verb: Some((*verb).to_owned()),
                    namespace: Some(namespace.clone()),
                    ..ResourceAttributes::default()
                };
                match may(cluster, &format!("{its_namespace}:{account}"), attributes).await {
                    Ok(true) => {}
                    Ok(false) => {
                        let of = match *subresource {
                            "" => (*resource).to_owned(),
                            subresource => format!("{resource}/{subresource}"),
                        };
                        missing.push(format!("{verb} {of} in {namespace}"));
                    }
                    Err(error) => {
                        let message = format!("its rights can't be asked for: {}", explain(&error));
                        let next = "ask a user with permission to create SubjectAccessReviews";
                        return vec![Finding::remark(about, message, next)];
                    }
                }
            }
        }
    }
    if missing.is_empty() {
        return vec![Finding::ok(about, "has the rights that the operator needs")];
    }
    let message = format!("may not {}", missing.join(", "));
    let next = "install the chart's roles for these namespaces, or watch other ones";
    vec![Finding::wrong(about, message, next)]
}

async fn may(
    cluster: &Cluster,
    account: &str,
    attributes: ResourceAttributes,
) -> kube::Result<bool> {
    let namespace = account.split(':').next().unwrap_or_default();
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(format!("system:serviceaccount:{account}")),
            groups: Some(vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
                "system:authenticated".to_owned(),
            ]),
            resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let api: Api<SubjectAccessReview> = Api::all(cluster.client.clone());
    let answer = api.create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}
