//! Tests of how the settings of a broker are read.

use proptest::prelude::*;
use secrecy::ExposeSecret;

use super::super::tests::data;
use super::super::{RedisSettings, with_admin_secret};
use super::*;

#[test]
fn the_cluster_operators_default_user_secret_is_understood() {
    let s = RabbitmqSettings::from_secret(
        &data(&[("host", "rabbit"), ("port", "5673"), ("username", "u"), ("password", "p")]),
        Some("prod"),
    )
    .unwrap();
    assert_eq!(format!("{s:?}"), "amqp://u@rabbit:5673/prod");
    assert!(s.management.is_none());
}

#[test]
fn a_uri_without_an_amqp_scheme_is_the_management_address() {
    for uri in ["http://rabbit:15672", "rabbit:15672"] {
        let s = RabbitmqSettings::from_secret(
            &data(&[("uri", uri), ("host", "rabbit"), ("username", "u"), ("password", "p")]),
            None,
        )
        .unwrap();
        assert_eq!(s.management.unwrap().url, "http://rabbit:15672");
    }
}

#[test]
fn the_administrator_has_separate_credentials() {
    let of = |admin| {
        let keys = [("amqpUri", "amqp://u:p@h"), ("adminUri", admin)];
        RabbitmqSettings::from_secret(&data(&keys), None)
    };
    let settings = of("http://root:secret@m:15672").unwrap();
    let administrator = settings.administrator.unwrap();
    assert_eq!(format!("{administrator:?}"), "http://m:15672 as root");
    assert!(of("http://m:15672").unwrap_err().to_string().contains("administrator"));
}

#[test]
fn the_administrator_may_be_in_another_secret_which_clients_need_not_read() {
    let keys = [("amqpUri", "amqp://u:p@h"), ("adminSecretName", "other\n"), ("ca.crt", CA)];
    let connection = data(&keys);
    assert_eq!(admin_secret(&connection).as_deref(), Some("other"));
    let of_a_client = RabbitmqSettings::from_secret(&connection, None).unwrap();
    assert!(of_a_client.administrator.is_none());
    for key in ["adminUri", "adminUrl"] {
        let admin = data(&[(key, "https://root:secret@m:15671")]);
        let both = with_admin_secret(connection.clone(), &admin).unwrap();
        let administrator = RabbitmqSettings::from_secret(&both, None).unwrap().administrator;
        let administrator = administrator.unwrap();
        assert_eq!(format!("{administrator:?}"), "https://m:15671 as root");
        assert!(administrator.tls.unwrap().authorities.is_some());
    }
    let error = with_admin_secret(connection, &data(&[("uri", "x")])).unwrap_err().to_string();
    assert!(error.contains("adminUri") && error.contains("adminSecretName"), "{error}");
    // One in the Secret itself takes precedence.
    let own = data(&[("adminUri", "http://a:b@m"), ("adminSecretName", "other")]);
    assert_eq!(admin_secret(&own), None);
}

#[test]
fn the_keys_of_urls_may_be_spelled_as_in_any_other_secret() {
    let keys = [
        ("amqpUrl", "amqp://u:p@h/v"),
        ("managementUrl", "http://m:1"),
        ("adminUrl", "http://a:b@m:2"),
        ("redisUrl", "redis://r:3/4"),
    ];
    let settings = RabbitmqSettings::from_secret(&data(&keys), None).unwrap();
    assert_eq!(settings.place(), "h:5672/v");
    assert_eq!(settings.management.unwrap().url, "http://m:1");
    assert_eq!(settings.administrator.unwrap().url, "http://m:2");
    let redis = RedisSettings::from_secret(&data(&keys), None).unwrap();
    assert_eq!(redis.address(), "r:3/4");
    let wrong = data(&[("amqpUrl", "http://h")]);
    let error = RabbitmqSettings::from_secret(&wrong, None).unwrap_err().to_string();
    assert!(error.contains("amqpUrl is not valid"), "{error}");
}

#[test]
fn an_encoded_vhost_and_password_are_decoded() {
    let s = RabbitmqSettings::from_urls("amqp://u:p%40ss@h/%2Fx", Some("http://m:1/")).unwrap();
    assert_eq!(s.vhost, "/x");
    assert_eq!(s.password.expose_secret(), "p@ss");
    assert_eq!(s.management.unwrap().url, "http://m:1");
}

const CA: &str = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";

#[test]
fn each_way_to_ask_for_encryption_is_understood() {
    let secret = |pairs: &[(&str, &str)]| {
        let s = RabbitmqSettings::from_secret(&data(pairs), None).unwrap();
        let management = s.management.as_ref().is_some_and(|m| m.tls.is_some());
        (format!("{s:?}"), management)
    };
    assert_eq!(secret(&[("uri", "amqps://u:p@h")]), ("amqps://u@h:5671//".into(), false));
    let keys = [("host", "h"), ("username", "u"), ("password", "p")];
    let with = |more: &[(&'static str, &'static str)]| [&keys[..], more].concat();
    assert_eq!(secret(&with(&[("tls", "true")])).0, "amqps://u@h:5671//");
    // As the cluster operator writes it for a cluster with TLS.
    let written = [("port", "5671"), ("connection_string", "amqps://u:p@h:5671/")];
    assert_eq!(secret(&with(&written)).0, "amqps://u@h:5671//");
    let both = secret(&with(&[("uri", "https://h:15671"), ("ca.crt", CA)]));
    assert_eq!(both, ("amqp://u@h:5672//".into(), true));
    let six = RabbitmqSettings::from_urls("amqps://u:p@[::1]/v", None).unwrap();
    assert_eq!((six.host.as_str(), format!("{six:?}").as_str()), ("::1", "amqps://u@[::1]:5671/v"));
}

#[test]
fn certificates_without_encryption_and_half_a_pair_are_refused_without_showing_them() {
    let said = |pairs: &[(&str, &str)]| {
        RabbitmqSettings::from_secret(&data(pairs), None).unwrap_err().to_string()
    };
    let plain = said(&[("uri", "amqp://u:p@h"), ("ca.crt", CA)]);
    assert!(plain.starts_with("ca.crt is set, and the connection is not encrypted: "), "{plain}");
    assert!(plain.contains("add the key tls"), "{plain}");
    let key = "-----BEGIN PRIVATE KEY-----\nhush\n-----END PRIVATE KEY-----\n";
    let half = said(&[("uri", "amqps://u:p@h"), ("tls.key", key)]);
    assert!(half.contains("tls.crt") && !half.contains("hush"), "{half}");
    let wrong = said(&[("uri", "amqps://u:p@h"), ("tls.crt", CA), ("tls.key", "hush")]);
    assert!(wrong.contains("tls.key") && !wrong.contains("hush"), "{wrong}");
}

#[test]
fn the_files_of_an_environment_are_read_and_one_that_can_not_be_is_named() {
    let settings = || RabbitmqSettings::from_urls("amqps://h", Some("https://h:1")).unwrap();
    let variable = |name: &str| (name == "RABBITMQ_TLS_CA_FILE").then(|| "/ca".into());
    let read = |file: &str| (file == "/ca").then(|| CA.into());
    let s = settings().with_tls_of_environment(variable, read).unwrap();
    assert!(s.tls.unwrap().authorities.is_some());
    assert!(s.management.unwrap().tls.unwrap().authorities.is_some());
    let plain = RabbitmqSettings::from_urls("amqp://h", Some("http://h:1")).unwrap();
    let err = plain.with_tls_of_environment(variable, read).unwrap_err().to_string();
    assert!(err.starts_with("RABBITMQ_TLS_CA_FILE is set, and the connection is not"), "{err}");
    assert!(err.contains("amqps://") && !err.contains("key"), "{err}");
    let err = settings().with_tls_of_environment(variable, |_| None).unwrap_err();
    assert!(err.to_string().contains("RABBITMQ_TLS_CA_FILE"), "{err}");
}

/// Names that a library for URLs would change.
const NAMES: [&str; 12] =
    [".", "..", "a/../b", "a/./b", "%2e%2e", "%2F", "A", r"a\b", "a\tb", " a ", "//", "ÄäI\u{301}"];

/// Reads a URL with this name as its user, its password and its path, encoded by `encode`.
fn arrives(name: &str, encode: impl Fn(&str) -> String) {
    let text = encode(name);
    let amqp = format!("amqp://{text}:{text}@h/{text}");
    let broker = RabbitmqSettings::from_urls(&amqp, Some(&format!("http://{text}:{text}@m")));
    let broker = broker.unwrap_or_else(|error| panic!("{amqp}: {error}"));
    let api = broker.management.as_ref().unwrap();
    for login in [(&broker.username, &broker.password), (&api.username, &api.password)] {
        assert_eq!((login.0.as_str(), login.1.expose_secret()), (name, name), "{amqp}");
    }
    assert_eq!(broker.vhost, name, "{amqp}");
    let redis = format!("redis-sentinel://{text}:{text}@h/0#{text}");
    let server = RedisSettings::from_url(&redis).unwrap();
    assert_eq!(server.username.as_deref(), Some(name), "{redis}");
    assert_eq!(server.password.unwrap().expose_secret(), name, "{redis}");
    assert_eq!(server.sentinel.unwrap().master, name, "{redis}");
    let keys = [("host", "h"), ("username", name), ("password", name)];
    let keys = RabbitmqSettings::from_secret(&data(&keys), Some(name)).unwrap();
    assert_eq!((keys.username.as_str(), keys.vhost.as_str()), (name, name));
    assert_eq!(keys.password.expose_secret(), name);
}

fn encoded(name: &str) -> String {
    percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC).to_string()
}

#[test]
fn no_name_is_normalized_as_a_path() {
    for name in NAMES {
        arrives(name, encoded);
    }
    // These need not be encoded.
    for name in [".", "..", "...", "A.b-C_~", "a..b"] {
        arrives(name, ToOwned::to_owned);
    }
}

proptest! {
    #[test]
    fn every_encoded_name_arrives_as_it_is(name in r"\PC{1,20}") {
        arrives(&name, encoded);
    }
}
