//! Finds the API server and its credentials as kubectl does: the files of `KUBECONFIG`,
//! `~/.kube/config` or the pod's service account, and the proxy of the environment. See
//! `api_server` for the operator's client.

use std::path::{Path, PathBuf};

use axum::http::Uri;
use hyper_util::client::proxy::matcher::Matcher;
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig, KubeconfigError, NoProxyError};
use lockkeeper_plan::connection::{SettingsError, variable_text};

/// Why no API server was found.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// There is neither a file nor a service account.
    #[error(
        "no API server is known: there is no kubeconfig file, and this is not a pod with a service account; set KUBECONFIG"
    )]
    Nowhere,
    /// kube can't parse `NO_PROXY`.
    #[error("NO_PROXY is no list of hosts, addresses and networks, separated by commas ({0})")]
    NoProxy(#[source] NoProxyError),
    /// A variable with a proxy is not text.
    #[error(transparent)]
    NotText(#[from] SettingsError),
    /// A file can't be read, or does not describe a cluster.
    #[error("the kubeconfig can't be used: {0}")]
    Kubeconfig(#[source] KubeconfigError),
}

impl From<KubeconfigError> for ConfigError {
    fn from(error: KubeconfigError) -> Self {
        match error {
            KubeconfigError::ParseNoProxy(error) => Self::NoProxy(error),
            error => Self::Kubeconfig(error),
        }
    }
}

/// Returns the configuration of a file, or of the environment. `context` is one of the
/// kubeconfig's. Does not connect.
///
/// # Errors
///
/// [`ConfigError`]: there is no usable configuration.
pub async fn find(file: Option<&Path>, context: Option<&str>) -> Result<Config, ConfigError> {
    let kubeconfig = match file {
        Some(file) => Some(Kubeconfig::read_from(file)?),
        None => read(&files())?,
    };
    let of_pod = || Config::incluster().map_err(|_| ConfigError::Nowhere);
    let Some(kubeconfig) = kubeconfig else { return of_pod() };
    let proxy_url = proxy_url(&kubeconfig, context);
    let options = KubeConfigOptions {
        context: context.map(ToOwned::to_owned),
        ..KubeConfigOptions::default()
    };
    match Config::from_custom_kubeconfig(kubeconfig, &options).await {
        Ok(mut config) => {
            config.proxy_url = match proxy_url {
                Some(url) => Some(url.parse().map_err(KubeconfigError::ParseProxyUrl)?),
                None => Proxies::of_environment()?.of(&config.cluster_url),
            };
            Ok(config)
        }
        // A file without a context, in a pod.
        Err(error) if file.is_none() && context.is_none() => of_pod().map_err(|_| error.into()),
        Err(error) => Err(error.into()),
    }
}

/// Returns the files that describe clusters, whether they exist or not.
fn files() -> Vec<PathBuf> {
    match std::env::var_os("KUBECONFIG").filter(|list| !list.is_empty()) {
        Some(list) => std::env::split_paths(&list).filter(|path| *path != Path::new("")).collect(),
        None => std::env::home_dir().map(|home| home.join(".kube/config")).into_iter().collect(),
    }
}

/// Reads and merges those of the files that exist, as kubectl does.
fn read(files: &[PathBuf]) -> Result<Option<Kubeconfig>, KubeconfigError> {
    files.iter().filter(|file| file.exists()).try_fold(None, |merged, file| {
        let next = Kubeconfig::read_from(file)?;
        Ok(Some(match merged {
            None => next,
            Some(merged) => Kubeconfig::merge(merged, next)?,
        }))
    })
}

/// Returns the `proxy-url` of the context's cluster. It takes precedence over the
/// environment.
fn proxy_url(kubeconfig: &Kubeconfig, context: Option<&str>) -> Option<String> {
    let name = context.or(kubeconfig.current_context.as_deref())?;
    let context = kubeconfig.contexts.iter().find(|context| context.name == name)?;
    let cluster = &context.context.as_ref()?.cluster;
    let cluster = kubeconfig.clusters.iter().find(|named| named.name == *cluster)?;
    cluster.cluster.as_ref()?.proxy_url.clone().filter(|url| !url.is_empty())
}

/// The proxies of the environment.
struct Proxies {
    http: String,
    https: String,
    none: String,
}

impl Proxies {
    fn of_environment() -> Result<Self, SettingsError> {
        let text = |name| variable_text(name, std::env::var_os(name));
        let either = |upper, lower| match text(upper)? {
            None => text(lower).map(Option::unwrap_or_default),
            Some(value) => Ok(value),
        };
        Ok(Self {
            http: either("HTTP_PROXY", "http_proxy")?,
            https: either("HTTPS_PROXY", "https_proxy")?,
            none: either("NO_PROXY", "no_proxy")?,
        })
    }

    /// Returns the proxy for an API server. As in kubectl, one of this machine has none.
    /// kube compares `NO_PROXY` with the proxy's address instead of the API server's.
    fn of(&self, server: &Uri) -> Option<Uri> {
        let host = server.host()?.trim_matches(['[', ']']);
        let is_local = host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
        if is_local || host == "localhost" {
            return None;
        }
        let matcher = Matcher::builder()
            .http(self.http.as_str())
            .https(self.https.as_str())
            .no(self.none.as_str())
            .build();
        matcher.intercept(server)?;
        let proxy = if server.scheme_str() == Some("http") { &self.http } else { &self.https };
        let has_scheme = proxy.contains("://");
        if has_scheme { proxy.parse().ok() } else { format!("http://{proxy}").parse().ok() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_is_used_unless_no_proxy_names_the_api_server() {
        let proxies = |none: &str| Proxies {
            http: "http://plain:3128".to_owned(),
            https: "http://user:word@secure:3128".to_owned(),
            none: none.to_owned(),
        };
        let of = |none: &str, server: &str| {
            proxies(none).of(&server.parse().unwrap()).map(|proxy| proxy.to_string())
        };
        let secure = Some("http://user:word@secure:3128/".to_owned());
        assert_eq!(of("", "https://api.example.com:6443"), secure);
        assert_eq!(of("", "http://api.example.com"), Some("http://plain:3128/".to_owned()));
        assert_eq!(of("secure", "https://api.example.com:6443"), secure, "it names the proxy");
        for none in ["*", "api.example.com", ".example.com", "example.com", "a, api.example.com,,"]
        {
            assert_eq!(of(none, "https://api.example.com:6443"), None, "{none}");
        }
        assert_eq!(of("10.0.0.0/8", "https://10.1.2.3:6443"), None);
        for local in ["https://127.0.0.1:6443", "https://localhost:6443", "https://[::1]:6443"] {
            assert_eq!(of("", local), None, "{local}");
        }
        let bare = Proxies { https: "secure:3128".to_owned(), ..proxies("") };
        let proxy = bare.of(&"https://api.example.com".parse().unwrap());
        assert_eq!(proxy.unwrap().to_string(), "http://secure:3128/");
    }

    #[test]
    fn files_that_do_not_exist_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let path = folder.path().join(name);
            let cluster = format!("{{name: {name}, cluster: {{server: https://{name}:6443}}}}");
            let text = format!("apiVersion: v1\nkind: Config\nclusters: [{cluster}]\n");
            std::fs::write(&path, text).unwrap();
            path
        };
        let missing = folder.path().join("missing");
        assert!(read(std::slice::from_ref(&missing)).unwrap().is_none());
        let merged = read(&[missing, file("one"), file("two")]).unwrap().unwrap();
        let names: Vec<_> = merged.clusters.iter().map(|cluster| cluster.name.as_str()).collect();
        assert_eq!(names, ["one", "two"]);
    }

    #[test]
    fn the_proxy_of_the_contexts_cluster_is_found() {
        let text = "
apiVersion: v1
kind: Config
current-context: a
contexts:
- {name: a, context: {cluster: one}}
- {name: b, context: {cluster: two}}
clusters:
- {name: one, cluster: {server: https://one, proxy-url: http://proxy}}
- {name: two, cluster: {server: https://two}}
";
        let kubeconfig = Kubeconfig::from_yaml(text).unwrap();
        assert_eq!(proxy_url(&kubeconfig, None).as_deref(), Some("http://proxy"));
        assert_eq!(proxy_url(&kubeconfig, Some("b")), None);
        assert_eq!(proxy_url(&kubeconfig, Some("c")), None);
    }
}
