//! The errors of a server are distinguished, and contain no password.

use std::time::{Duration, Instant};

use lockkeeper_plan::ErrorClass;
use lockkeeper_plan::connection::RedisSettings;
use lockkeeper_plan::pressure_queue::QueueEffect;
use lockkeeper_pressure::{Store, StoreError, StoreOptions, TakenRoles};
use lockkeeper_testkit::redis::{AclUser, TestQueue, random_word};

const CREATE: QueueEffect = QueueEffect::Create { bound: 3 };

fn store(settings: RedisSettings) -> Store {
    Store::new(settings, StoreOptions::new("the operator"))
}

/// Returns the error's texts, after checking that they may be displayed.
fn shown(err: &StoreError, secrets: &[&str]) -> String {
    let text = format!("{err} {err:?} {}", err.reason());
    for secret in secrets {
        assert!(!text.contains(secret), "{text}");
    }
    assert!(err.reason().chars().all(char::is_alphanumeric));
    assert!(err.to_string().contains(':'), "says what to do next: {err}");
    text
}

fn password_of(settings: &RedisSettings) -> String {
    use secrecy::ExposeSecret;
    settings.password.as_ref().map(|password| password.expose_secret().to_owned()).unwrap()
}

#[tokio::test]
async fn a_wrong_password_and_an_unknown_user_are_refused_logins() {
    let place = TestQueue::new().await;
    let mut wrong_password = place.settings();
    wrong_password.password = Some("wrong-hush".into());
    let mut unknown_user = place.settings();
    let right = password_of(&unknown_user);
    unknown_user.username = Some(format!("nobody-{}", random_word()));
    let mut no_login = place.settings();
    (no_login.username, no_login.password) = (None, None);
    let mut default_user = place.settings();
    default_user.username = None;
    default_user.password = Some("wrong-hush".into());
    for settings in [wrong_password, unknown_user, no_login, default_user] {
        let err = store(settings.clone()).observe(&place.queue).await.unwrap_err();
        assert!(matches!(err, StoreError::AuthenticationFailed { .. }), "{settings:?}: {err:?}");
        assert_eq!(err.class(), ErrorClass::Invalid);
        assert_eq!(err.reason(), "StoreAuthenticationFailed");
        shown(&err, &["wrong-hush", &right]);
    }
}

#[tokio::test]
async fn a_login_that_is_corrected_on_the_server_is_noticed() {
    let place = TestQueue::new().await;
    let user = AclUser::named_for(&place);
    let store = store(user.settings.clone());
    let err = store.observe(&place.queue).await.unwrap_err();
    assert!(matches!(err, StoreError::AuthenticationFailed { .. }));
    user.set(&place, &["~*", "+@all"]).await;
    store.observe(&place.queue).await.unwrap();
}

/// Returns a store of a user with these ACL rules.
async fn limited(place: &TestQueue, rules: &[&str]) -> (AclUser, Store) {
    let user = AclUser::named_for(place);
    user.set(place, rules).await;
    let store = store(user.settings.clone());
    (user, store)
}

/// Permissions that an administrator's user requires, without those that are optional.
pub const DOCUMENTED: [&str; 15] = [
    "+evalsha",
    "+script|load",
    "+type",
    "+exists",
    "+get",
    "+getrange",
    "+llen",
    "+set",
    "+lpush",
    "+rpop",
    "+ltrim",
    "+del",
    "-@dangerous",
    "-info",
    "-client",
];

#[tokio::test]
async fn the_documented_permissions_suffice_for_everything() {
    let place = TestQueue::new().await;
    let keys = format!("~{}:*", place.queue.prefix());
    let mut rules = vec![keys.as_str()];
    rules.extend(DOCUMENTED);
    let (_user, store) = limited(&place, &rules).await;
    let identity = store.identity().await.unwrap();
    assert_eq!(identity.run_id, None, "INFO is forbidden, and that is no error");
    store.apply(&place.queue, &CREATE).await.unwrap();
    store.observe(&place.queue).await.unwrap();
    store.apply(&place.queue, &QueueEffect::SetBound { bound: 1 }).await.unwrap();
    store.apply(&place.queue, &QueueEffect::Close).await.unwrap();
    store.delete(&place.queue, TakenRoles::Wait).await.unwrap();
    assert!(place.dump().await.is_empty());
}

fn check_denied(result: Result<impl std::fmt::Debug, StoreError>, command: &str) {
    let err = result.unwrap_err();
    assert!(matches!(err, StoreError::PermissionDenied { .. }), "{command}: {err:?}");
    assert_eq!(err.class(), ErrorClass::Invalid);
    let text = shown(&err, &[AclUser::PASSWORD]).to_lowercase();
    assert!(text.contains(command), "names the command {command}: {text}");
}

#[tokio::test]
async fn a_missing_permission_is_named_and_nothing_is_half_done() {
    const SET_BOUND: QueueEffect = QueueEffect::SetBound { bound: 1 };
    const CLOSE: QueueEffect = QueueEffect::Close;
    for command in ["lpush", "set", "del", "rpop"] {
        let place = TestQueue::new().await;
        let keys = format!("~{}:*", place.queue.prefix());
        let (_user, store) = limited(&place, &[&keys, "+@all", &format!("-{command}")]).await;
        if ["lpush", "set"].contains(&command) {
            check_denied(store.apply(&place.queue, &CREATE).await, command);
            assert!(place.dump().await.is_empty(), "no half of a queue");
        }
        place.store().apply(&place.queue, &CREATE).await.unwrap();
        let () = place.run(&["LPUSH", &place.key(""), "a", "b"]).await;
        let before = place.dump().await;
        if ["lpush", "set", "del"].contains(&command) {
            check_denied(store.apply(&place.queue, &SET_BOUND).await, command);
        }
        if ["lpush", "set", "rpop"].contains(&command) {
            check_denied(store.apply(&place.queue, &CLOSE).await, command);
        }
        if ["lpush", "del"].contains(&command) {
            check_denied(store.delete(&place.queue, TakenRoles::Wait).await, command);
        }
        assert_eq!(place.dump().await, before, "{command}");
    }
}

#[tokio::test]
async fn keys_outside_the_user_s_pattern_and_scripts_forbidden_are_missing_permissions() {
    let place = TestQueue::new().await;
    for rules in
        [["~other:*", "+@all", "+ping"], ["~*", "+@all", "-evalsha"], ["~*", "+@all", "-type"]]
    {
        let (_user, store) = limited(&place, &rules).await;
        let err = store.observe(&place.queue).await.unwrap_err();
        assert!(matches!(err, StoreError::PermissionDenied { .. }), "{rules:?}: {err:?}");
        shown(&err, &[AclUser::PASSWORD]);
    }
}

#[tokio::test]
async fn a_database_that_the_server_does_not_have_is_named() {
    let place = TestQueue::new().await;
    let secret = password_of(&place.settings());
    for database in [1_000_000, i64::MAX, -1] {
        let mut settings = place.settings();
        settings.database = database;
        let err = store(settings).observe(&place.queue).await.unwrap_err();
        assert_eq!(err, StoreError::DatabaseOutOfRange { database });
        assert_eq!(err.class(), ErrorClass::Invalid);
        shown(&err, &[&secret]);
    }
}

#[tokio::test]
async fn databases_are_kept_apart() {
    let place = TestQueue::new().await;
    let mut settings = place.settings();
    settings.database = 4095;
    let elsewhere = store(settings);
    place.store().apply(&place.queue, &CREATE).await.unwrap();
    assert_eq!(elsewhere.observe(&place.queue).await.unwrap().bound, None);
}

#[tokio::test]
async fn a_closed_port_and_an_unknown_host_are_unreachable() {
    let place = TestQueue::new().await;
    let secret = password_of(&place.settings());
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let mut settings = place.settings();
    settings.port = listener.local_addr().unwrap().port();
    drop(listener);
    let mut nowhere = place.settings();
    nowhere.host = "no-such-host.invalid".to_owned();
    for settings in [settings, nowhere] {
        let err = store(settings).observe(&place.queue).await.unwrap_err();
        assert!(matches!(err, StoreError::Unreachable { .. }), "{err:?}");
        assert_eq!(err.class(), ErrorClass::Transient);
        assert_eq!(err.reason(), "StoreUnreachable");
        shown(&err, &[&secret]);
    }
}

#[tokio::test]
async fn a_server_that_accepts_and_never_answers_is_given_up_in_time_by_everyone_at_once() {
    let place = TestQueue::new().await;
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let mut settings = place.settings();
    settings.port = listener.local_addr().unwrap().port();
    let mut options = StoreOptions::new("the operator");
    options.connect_timeout = Duration::from_secs(1);
    let store = Store::new(settings, options);
    let began = Instant::now();
    let all = (0..20).map(|_| store.observe(&place.queue));
    for result in futures::future::join_all(all).await {
        assert_eq!(result.unwrap_err(), StoreError::Timeout);
    }
    // Twenty attempts one after the other would take twenty seconds.
    assert!(began.elapsed() < Duration::from_secs(10), "took {:?}", began.elapsed());
}

#[tokio::test]
async fn a_key_that_is_not_pressure_s_is_named_by_every_change_and_left_alone() {
    let place = TestQueue::new().await;
    let store = place.store();
    store.apply(&place.queue, &CREATE).await.unwrap();
    for (suffix, command) in
        [("", &["SET", "x"][..]), (":closed", &["HSET", "f", "v"]), (":producer", &["LPUSH", "x"])]
    {
        let key = place.key(suffix);
        let mut set = vec![command[0], &key];
        set.extend(&command[1..]);
        let () = place.run(&set).await;
        let before = place.dump().await;
        let wrong = StoreError::WrongType { key: key.clone() };
        for effect in [CREATE, QueueEffect::SetBound { bound: 1 }, QueueEffect::Close] {
            assert_eq!(store.apply(&place.queue, &effect).await.unwrap_err(), wrong);
        }
        assert_eq!(store.delete(&place.queue, TakenRoles::Wait).await.unwrap_err(), wrong);
        // Force does not remove keys of other programs either.
        assert_eq!(store.delete(&place.queue, TakenRoles::Ignore).await.unwrap_err(), wrong);
        assert_eq!(place.dump().await, before);
        assert_eq!(wrong.class(), ErrorClass::Invalid);
        let () = place.run(&["DEL", &key]).await;
    }
    let () = place.run(&["SET", &place.key(":bound"), "many"]).await;
    let err = store.apply(&place.queue, &QueueEffect::SetBound { bound: 1 }).await.unwrap_err();
    assert_eq!(err, StoreError::WrongType { key: place.key(":bound") });
}
