//! Malformed Secrets and URLs: no part of a secret shows, neither in the error nor in the
//! server's name, which goes into statuses, logs and metrics.

use std::fmt::Debug;

use super::tests::data;
use super::*;

/// Parts of secrets. None of them may show.
const CANARIES: [&str; 3] = ["canary", "4711", "hush"];

/// Passwords with a character that has a meaning in URLs, not percent-encoded.
const PASSWORDS: [&str; 16] = [
    "hush@canary",
    "hush/canary",
    "hush?canary",
    "hush#canary",
    "4711#canary",
    "4711/canary",
    "4711?canary",
    "4711@canary",
    "4711\\canary",
    "hush canary",
    "4711\tcanary",
    "4711\ncanary",
    "hush@canary/word",
    "hush@canary:1/word",
    "@/canary",
    "4711/?heartbeat=1#canary",
];

fn shows_nothing<T: Debug>(
    what: &str,
    key: &str,
    read: Result<T, SettingsError>,
    shown: impl FnOnce(&T) -> String,
) {
    match read {
        Err(error) => {
            let (SettingsError::MissingKey { key: named, .. }
            | SettingsError::BadValue { key: named, .. }
            | SettingsError::NotEncrypted { key: named, .. }
            | SettingsError::NotText { variable: named }) = &error;
            assert_eq!(*named, key, "{what:?}: {error}");
            hides(what, &format!("{error} {error:?}"));
        }
        // Valid in spite of its looks.
        Ok(settings) => hides(what, &format!("{settings:?} {}", shown(&settings))),
    }
}

fn hides(what: &str, text: &str) {
    for canary in CANARIES {
        assert!(!text.contains(canary), "{what:?} shows {canary}: {text}");
    }
}

fn rabbitmq(what: &str, key: &str, read: Result<RabbitmqSettings, SettingsError>) {
    shows_nothing(what, key, read, |settings| {
        let apis = [&settings.management, &settings.administrator];
        let apis = apis.into_iter().flatten().map(|api| api.url.as_str());
        format!("{} {}", settings.place(), apis.collect::<Vec<_>>().join(" "))
    });
}

fn redis(what: &str, key: &str, read: Result<RedisSettings, SettingsError>) {
    shows_nothing(what, key, read, RedisSettings::address);
}

#[test]
fn a_password_that_is_not_percent_encoded_is_refused_and_never_shown() {
    let encodes = |error: Option<SettingsError>, url: &str| {
        let error = error.unwrap_or_else(|| panic!("{url:?} is accepted")).to_string();
        assert!(error.contains("percent-encode"), "{url:?}: {error}");
    };
    for password in PASSWORDS {
        for host in ["broker", "broker:1234", "127.0.0.1:1234", "[::1]:1234"] {
            for scheme in ["amqp", "amqps"] {
                let url = format!("{scheme}://user:{password}@{host}/vhost");
                let of_secret = |key| RabbitmqSettings::from_secret(&data(&[(key, &url)]), None);
                encodes(RabbitmqSettings::from_urls(&url, None).err(), &url);
                rabbitmq(&url, "amqpUri", RabbitmqSettings::from_urls(&url, None));
                for key in ["amqpUri", "uri"] {
                    rabbitmq(&url, key, of_secret(key));
                }
            }
            for scheme in ["http://", "https://", ""] {
                let url = format!("{scheme}user:{password}@{host}/prefix");
                let amqp = ("amqpUri", "amqp://u:hush@h");
                for key in ["managementUri", "adminUri", "uri"] {
                    let keys = data(&[amqp, (key, &url)]);
                    encodes(RabbitmqSettings::from_secret(&keys, None).err(), &url);
                    rabbitmq(&url, key, RabbitmqSettings::from_secret(&keys, None));
                }
            }
            for scheme in ["redis", "rediss", "redis-sentinel", "rediss-sentinel"] {
                let second = if scheme.contains("sentinel") { ",second:1" } else { "" };
                let master = if scheme.contains("sentinel") { "#master" } else { "" };
                for user in ["", "user"] {
                    let url = format!("{scheme}://{user}:{password}@{host}{second}/0{master}");
                    encodes(RedisSettings::from_url(&url).err(), &url);
                    let keys = data(&[("uri", &url)]);
                    redis(&url, "uri", RedisSettings::from_secret(&keys, None));
                    let variable = |name: &str| (name == "REDIS_URL").then(|| url.clone().into());
                    let read = RedisSettings::from_environment(variable, |_| None);
                    redis(&url, "REDIS_URL", read);
                }
            }
        }
    }
}

#[test]
fn no_part_of_a_malformed_url_or_key_is_shown() {
    for url in [
        "amqp://u:canary@127.0.0.1:99999/",
        "amqp://u:canary@127.0.0.1:4711x/",
        "amqp://u:canary%zz@127.0.0.1:1/",
        "amqp://u:canary%ff@127.0.0.1:1/",
        "amqp://u:canary",
        "canary",
        "http://u:canary@127.0.0.1",
        "amqp:u:canary@x",
        "amqp:/u:canary@x",
        "amqp://[::1:canary",
        "amqp://[canary]:1",
        "amqp://u:hush@[::1]canary:1",
        "amqp://:canary@",
        "amqp://u:hush@/canary",
        "amqp://u:hush@h:1/?canary=1",
        "amqp://u:hush@h:1/?heartbeat=1&canary",
        "amqp://u:hush@h:1/v#canary",
        "amqp://u:hush@can<ary",
        "amqp://u:hush@%63anary4711",
        " amqp://u:canary@127.0.0.1:x",
        "AMQP://u:canary@h/@",
    ] {
        rabbitmq(url, "amqpUri", RabbitmqSettings::from_urls(url, None));
        let administrator = RabbitmqSettings::from_urls("amqp://h", None).unwrap();
        rabbitmq(url, "key", administrator.with_administrator(url, "key"));
    }
    for host in [
        "user:canary@broker",
        "canary@broker",
        "amqp://u:canary@broker",
        "broker/canary",
        "broker?canary",
        "broker#canary",
        "broker canary",
        "h:canary",
        "broker:4711",
        "[::1]:4711",
        "u:canary:hush",
        "canary\\h",
        "\u{202e}canary",
        "canar%79/4711",
        "[canary]@4711",
    ] {
        let keys = data(&[("host", host), ("username", "u"), ("password", "hush")]);
        let read = RabbitmqSettings::from_secret(&keys, None);
        let said = read.as_ref().unwrap_err().to_string();
        assert!(said.contains("the key port"), "{said}");
        rabbitmq(host, "host", read);
        redis(host, "host", RedisSettings::from_secret(&keys, None));
        let variable = |name: &str| (name == "REDIS_SERVER").then(|| host.into());
        redis(host, "REDIS_SERVER", RedisSettings::from_environment(variable, |_| None));
    }
    for (key, value) in [
        ("port", "canary"),
        ("port", "4711 canary"),
        ("tls", "canary"),
        ("ca.crt", "canary"),
        ("tls.crt", "canary"),
        ("tls.key", "canary"),
    ] {
        let keys = [("host", "h"), ("username", "u"), ("password", "hush"), ("tls", "true")];
        let mut keys = data(&keys);
        keys.extend(data(&[(key, value)]));
        rabbitmq(value, key, RabbitmqSettings::from_secret(&keys, None));
        redis(value, key, RedisSettings::from_secret(&keys, None));
    }
    let keys = |pair| data(&[("host", "h"), ("username", "u"), ("password", "hush"), pair]);
    rabbitmq("probe", "probe", RabbitmqSettings::from_secret(&keys(("probe", "canary")), None));
    redis("db", "db", RedisSettings::from_secret(&keys(("db", "canary")), None));
    for url in [
        "redis://:hush@h:1/canary",
        "redis://:hush@h/0#canary",
        "redis://:hush@h?db=canary",
        "redis://:hush@h?password=canary",
        "amqp://u:hush@h?password=canary",
        "redis-sentinel://u:canary@h:1,canary@x:y/0",
        "redis-sentinel://u:hush@h:4711x/0#m",
        "redis://u:canary@h:1,i:2/0",
        "unix:///canary",
        "canary",
        "redis:canary@h",
    ] {
        redis(url, "uri", RedisSettings::from_url(url));
    }
}

#[test]
fn a_path_that_is_not_percent_encoded_is_refused_and_not_cut() {
    for (path, says) in [
        ("0?x", "unknown query parameter"),
        ("0?heartbeat=1&x", "unknown query parameter"),
        ("0#x", "fragment"),
    ] {
        let url = format!("//u:hush@h/{path}");
        for error in [
            RabbitmqSettings::from_urls(&format!("amqp:{url}"), None).err(),
            RabbitmqSettings::from_urls("amqp://h", Some(&format!("http:{url}"))).err(),
            RedisSettings::from_url(&format!("redis:{url}")).err(),
        ] {
            let error = error.unwrap_or_else(|| panic!("{path} is accepted")).to_string();
            assert!(error.contains(says), "{path}: {error}");
        }
    }
}

#[test]
fn an_encoded_password_and_known_query_parameters_are_accepted() {
    let secret = "p@s/s?w#o\\r d:%";
    let encoded = percent_encoding::utf8_percent_encode(secret, percent_encoding::NON_ALPHANUMERIC);
    let amqp = format!("amqp://u:{encoded}@h:1/%2F?verify=verify_peer&auth_mechanism=plain");
    let api = format!("https://a:{encoded}@m:2/prefix/");
    let settings = RabbitmqSettings::from_urls(&amqp, Some(&api)).unwrap();
    assert_eq!((settings.password.expose_secret(), settings.vhost.as_str()), (secret, "/"));
    let management = settings.management.unwrap();
    assert_eq!(management.password.expose_secret(), secret);
    assert_eq!(management.url, "https://m:2/prefix");
    let redis = RedisSettings::from_url(&format!("redis://u:{encoded}@h:1/2?protocol=3")).unwrap();
    assert_eq!((redis.password.unwrap().expose_secret(), redis.database), (secret, 2));
    // Some clients write the virtual host `/` like this.
    assert_eq!(RabbitmqSettings::from_urls("amqp://h//", None).unwrap().vhost, "/");
}
