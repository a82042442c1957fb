//! Tests of parsing a Redis server's Secret, URL and environment.

use std::os::unix::ffi::OsStringExt;

use secrecy::ExposeSecret;

use super::super::RabbitmqSettings;
use super::super::tests::data;
use super::*;

const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";
const KEY: &str = "-----BEGIN PRIVATE KEY-----\nhush\n-----END PRIVATE KEY-----\n";

fn from_variables(pairs: &[(&str, &str)]) -> Result<RedisSettings, SettingsError> {
    let variable =
        |name: &str| pairs.iter().find(|(n, _)| *n == name).map(|(_, value)| OsString::from(value));
    let read = |file: &str| match file {
        "/ca" | "/cert" => Some(CERTIFICATE.into()),
        "/key" => Some(KEY.into()),
        _ => None,
    };
    RedisSettings::from_environment(variable, read)
}

#[test]
fn a_resource_s_database_wins_over_the_secret_s() {
    let d = data(&[("uri", "redis://h:1/2")]);
    assert_eq!(RedisSettings::from_secret(&d, None).unwrap().database, 2);
    assert_eq!(RedisSettings::from_secret(&d, Some(5)).unwrap().database, 5);
}

#[test]
fn a_secret_asks_for_tls_by_its_key_or_its_uri() {
    for pairs in [
        &[("uri", "rediss://h")][..],
        &[("uri", "redis://h"), ("tls", "true")],
        &[("host", "h"), ("tls", "true")],
        &[("uri", "rediss://h"), ("tls", "true"), ("ca.crt", CERTIFICATE)],
    ] {
        let settings = RedisSettings::from_secret(&data(pairs), None).unwrap();
        let has_own = pairs.iter().any(|(key, _)| *key == "ca.crt");
        assert_eq!(settings.tls.unwrap().authorities.is_some(), has_own, "{pairs:?}");
    }
    for pairs in [&[("host", "h")][..], &[("host", "h"), ("tls", "false")]] {
        assert!(RedisSettings::from_secret(&data(pairs), None).unwrap().tls.is_none());
    }
}

#[test]
fn mistakes_about_tls_are_named_by_their_key_and_no_value_is_shown() {
    for (wrong, key) in [
        (&[("tls", "yes")][..], "tls"),
        (&[("uri", "rediss://h"), ("tls", "false")], "tls"),
        (&[("ca.crt", CERTIFICATE)], "ca.crt"),
        (&[("tls", "true"), ("ca.crt", "hush")], "ca.crt"),
        (&[("tls", "true"), ("tls.crt", CERTIFICATE)], "tls.key"),
        (&[("tls", "true"), ("tls.key", KEY)], "tls.crt"),
        (&[("tls", "true"), ("tls.crt", CERTIFICATE), ("tls.key", "hush")], "tls.key"),
    ] {
        let mut all = data(&[("host", "h")]);
        all.extend(data(wrong));
        let err = RedisSettings::from_secret(&all, None).unwrap_err();
        let (SettingsError::MissingKey { key: named, .. }
        | SettingsError::BadValue { key: named, .. }
        | SettingsError::NotEncrypted { key: named, .. }
        | SettingsError::NotText { variable: named }) = &err;
        assert_eq!(*named, key, "{err}");
        assert!(!err.to_string().contains("hush"), "{err}");
    }
}

#[test]
fn debug_shows_neither_password_nor_key_nor_certificate() {
    let pairs = [("uri", "rediss://u:hush@h"), ("tls.crt", CERTIFICATE), ("tls.key", KEY)];
    let settings = RedisSettings::from_secret(&data(&pairs), None).unwrap();
    let text = format!("{settings:?} {:?} {}", settings.tls, settings.address());
    assert!(!text.contains("hush") && !text.contains("MIIB"), "{text}");
    assert_eq!(format!("{settings:?}"), "rediss://u@h:6379/0");
}

#[test]
fn a_sentinel_url_names_the_sentinels_and_the_master() {
    let url = "redis-sentinel://u:p%40@one:1,two,[::1]:3/4#my%20master";
    let settings = RedisSettings::from_url(url).unwrap();
    let sentinel = settings.sentinel.clone().unwrap();
    assert_eq!(sentinel.master, "my master");
    let address = |host: &str, port| (host.to_owned(), port);
    assert_eq!(sentinel.addresses, [address("one", 1), address("two", 26379), address("::1", 3)]);
    assert_eq!(settings.password.as_ref().unwrap().expose_secret(), "p@");
    assert_eq!((settings.username.as_deref(), settings.database), (Some("u"), 4));
    assert_eq!(settings.address(), "my master@one:1,two:26379,[::1]:3/4");
    assert!(RedisSettings::from_url("rediss-sentinel://h/0#m").unwrap().tls.is_some());
    for wrong in ["redis-sentinel://h:1/0", "redis-sentinel://h:1,/0#m", "redis://a:1,b:2/0"] {
        assert!(RedisSettings::from_url(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn the_environment_of_a_pressure_client_has_the_protocol_s_defaults() {
    assert_eq!(format!("{:?}", from_variables(&[]).unwrap()), "redis://default@127.0.0.1:6379/0");
    let set = [("REDIS_SERVER", "h"), ("REDIS_PORT", "7"), ("REDIS_DB", "3")];
    assert_eq!(format!("{:?}", from_variables(&set).unwrap()), "redis://default@h:7/3");
    let url = [("REDIS_URL", "redis://u:hush@o:1/2"), ("REDIS_SERVER", "h"), ("REDIS_DB", "")];
    assert_eq!(format!("{:?}", from_variables(&url).unwrap()), "redis://u@o:1/2");
    for wrong in [
        ("REDIS_PORT", "x"),
        ("REDIS_PORT", "0"),
        ("REDIS_DB", "x"),
        ("REDIS_DB", "-1"),
        ("REDIS_URL", "http://h"),
    ] {
        let err = from_variables(&[wrong]).unwrap_err();
        assert!(err.to_string().contains(wrong.0), "{err}");
    }
}

#[test]
fn certificate_files_of_the_environment_are_read_and_want_an_encrypted_address() {
    let files = [
        ("REDIS_TLS_CA_FILE", "/ca"),
        ("REDIS_TLS_CERT_FILE", "/cert"),
        ("REDIS_TLS_KEY_FILE", "/key"),
    ];
    let with = |url| [&[("REDIS_URL", url)], &files[..]].concat();
    let tls = from_variables(&with("rediss://h")).unwrap().tls.unwrap();
    assert_eq!(tls.authorities.as_deref(), Some(CERTIFICATE));
    assert_eq!(tls.client.unwrap().key.expose_secret(), KEY);
    assert!(from_variables(&with("redis://h")).is_err());
    let missing = [("REDIS_URL", "rediss://h"), ("REDIS_TLS_CA_FILE", "/none")];
    let err = from_variables(&missing).unwrap_err();
    assert!(err.to_string().contains("REDIS_TLS_CA_FILE"), "{err}");
}

#[test]
fn a_password_that_must_be_percent_encoded_is_named_as_such() {
    for wrong in ["redis://:a/b@h:1/0", "redis://u:a#b@h:1/0", "redis://u:a?b@h"] {
        let err = RedisSettings::from_url(wrong).unwrap_err().to_string();
        assert!(err.contains("percent-encode") && !err.contains("a/b"), "{err}");
    }
    let encoded = RedisSettings::from_url("redis://u:a%2Fb%23c@h:1/2").unwrap();
    assert_eq!(encoded.password.unwrap().expose_secret(), "a/b#c");
}

#[test]
fn unix_sockets_are_named_as_not_supported() {
    for wrong in ["unix:///run/redis.sock", "redis+socket:///run/redis.sock?virtual_host=1"] {
        let err = RedisSettings::from_url(wrong).unwrap_err().to_string();
        assert!(err.contains("Unix sockets are not supported"), "{err}");
    }
}

#[test]
fn a_variable_that_is_not_text_is_named_and_never_counts_as_unset() {
    let bytes = || OsString::from_vec(b"redis://:hush\xe9@h".to_vec());
    for wrong in ["REDIS_URL", "REDIS_SERVER", "REDIS_PORT", "REDIS_DB", "REDIS_TLS_CA_FILE"] {
        let variable = |name: &str| (name == wrong).then(bytes);
        let error = RedisSettings::from_environment(variable, |_| None).unwrap_err();
        assert_eq!(error, SettingsError::NotText { variable: wrong });
        assert!(error.to_string().contains(wrong) && !error.to_string().contains("hush"));
    }
    for wrong in ["RABBITMQ_TLS_CA_FILE", "RABBITMQ_TLS_CERT_FILE", "RABBITMQ_TLS_KEY_FILE"] {
        let broker = RabbitmqSettings::from_urls("amqps://h", None).unwrap();
        let variable = |name: &str| (name == wrong).then(bytes);
        let error = broker.with_tls_of_environment(variable, |_| None).unwrap_err();
        assert_eq!(error, SettingsError::NotText { variable: wrong });
    }
}

/// The variables that Kubernetes sets for a Service, in each pod of its namespace.
fn service_links(service: &str) -> Vec<(String, String)> {
    let (address, port) = ("10.96.0.11", 6380);
    let mut links = vec![
        ("SERVICE_HOST".to_owned(), address.to_owned()),
        ("SERVICE_PORT".to_owned(), port.to_string()),
        ("PORT".to_owned(), format!("tcp://{address}:{port}")),
    ];
    for name in ["URL", "AMQP", "DB", "SERVER", "TLS_CA_FILE"] {
        links.push((format!("SERVICE_PORT_{name}"), port.to_string()));
    }
    for protocol in ["TCP", "UDP", "SCTP"] {
        let start = format!("PORT_{port}_{protocol}");
        let url = format!("{}://{address}:{port}", protocol.to_lowercase());
        links.push((start.clone(), url));
        links.push((format!("{start}_PROTO"), protocol.to_lowercase()));
        links.push((format!("{start}_PORT"), port.to_string()));
        links.push((format!("{start}_ADDR"), address.to_owned()));
    }
    let service = service.to_uppercase().replace('-', "_");
    links.into_iter().map(|(name, value)| (format!("{service}_{name}"), value)).collect()
}

#[test]
fn service_links_of_kubernetes_have_no_effect() {
    let services =
        ["redis", "rabbitmq", "lockkeeper", "amqp", "pressure", "redis-server", "rabbitmq-tls-ca"];
    let set: Vec<_> = services.into_iter().flat_map(service_links).collect();
    let linked =
        |name: &str| set.iter().find(|(link, _)| link == name).map(|(_, value)| value.into());
    let of = |own: &[(&str, &str)]| {
        let variable = |name: &str| {
            let own = own.iter().find(|(own, _)| *own == name).map(|(_, value)| value.into());
            own.or_else(|| linked(name))
        };
        RedisSettings::from_environment(variable, |_| None).unwrap().address()
    };
    assert_eq!(of(&[]), "127.0.0.1:6379/0");
    assert_eq!(of(&[("REDIS_SERVER", "redis"), ("REDIS_DB", "3")]), "redis:6379/3");
    assert_eq!(of(&[("REDIS_SERVER", "redis"), ("REDIS_PORT", "7")]), "redis:7/0");
    assert_eq!(of(&[("REDIS_URL", "redis://h:1/2")]), "h:1/2");
    for link in ["tcp://10.0.0.1:6379", "udp://10.0.0.1:1", "sctp://[fd00::1]:1"] {
        assert_eq!(of(&[("REDIS_PORT", link)]), "127.0.0.1:6379/0");
    }
    let broker = RabbitmqSettings::from_urls("amqps://h", None).unwrap();
    let broker = broker.with_tls_of_environment(linked, |_| None).unwrap();
    assert!(broker.tls.unwrap().authorities.is_none());
}
