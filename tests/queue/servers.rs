//! Programs on servers that allow little: the least that a producer and a
//! consumer need, by Redis's and by Valkey's rules.

use lockkeeper::pressure::{Queue, QueueError, QueueOptions, StoreError, Wait};

use crate::redis_support::{AclUser, Place, PrivateRedis};

/// What is documented for both, and nothing that is used only where it is allowed.
const DOCUMENTED: [&str; 17] = [
    "+evalsha",
    "+script|load",
    "+type",
    "+exists",
    "+get",
    "+getrange",
    "+llen",
    "+set",
    "+lpush",
    "+lrange",
    "+rpop",
    "+ltrim",
    "+incrby",
    "+del",
    "+blmove",
    "-@dangerous",
    "-client",
];

async fn user(place: &Place, changes: &[&str]) -> (AclUser, Queue) {
    let user = AclUser::named_for(place);
    let keys = format!("~{}:*", place.queue.prefix());
    user.set(place, &[&[keys.as_str()], &DOCUMENTED[..], changes].concat()).await;
    let options = QueueOptions { client_id: user.name.clone(), ..QueueOptions::default() };
    let queue = Queue::new(user.settings.clone(), place.queue.clone(), options);
    (user, queue)
}

async fn all_is_allowed(place: &Place) {
    let (_producing, producer) = user(place, &[]).await;
    let (_consuming, consumer) = user(place, &[]).await;
    producer.create(1).await.unwrap();
    let putting = async {
        for element in ["a", "b", "c"] {
            producer.put(element).await.unwrap();
        }
        assert!(producer.peek(1).await.unwrap().len() <= 1);
        producer.close(Wait::Forever).await.unwrap();
    };
    let getting = async {
        for element in ["a", "b", "c"] {
            assert_eq!(consumer.get().await.unwrap(), element.as_bytes());
        }
        assert_eq!(consumer.get().await, Err(QueueError::Closed));
        consumer.delete(Wait::Forever).await.unwrap();
    };
    tokio::join!(putting, getting);
    assert!(place.dump().await.is_empty());
}

#[tokio::test]
async fn the_documented_permissions_suffice_for_a_producer_and_a_consumer() {
    all_is_allowed(&Place::new().await).await;
}

#[tokio::test]
async fn a_queue_works_on_valkey() {
    let program = std::env::var("VALKEY_SERVER").unwrap_or_else(|_| {
        panic!("VALKEY_SERVER is not set: run `make test`, which fetches a Valkey and sets it")
    });
    let server = PrivateRedis::start_program(&program, &[]).await;
    all_is_allowed(&Place::at(&server.url()).await).await;
}

#[tokio::test]
async fn a_missing_permission_is_said_before_anything_is_done() {
    let place = Place::new().await;
    let (_owner, all) = user(&place, &[]).await;
    all.create(2).await.unwrap();
    all.put("kept").await.unwrap();
    let before = place.dump().await;
    for (command, is_put) in
        [("set", true), ("lpush", true), ("incrby", true), ("rpop", false), ("set", false)]
    {
        let (_user, queue) = user(&place, &[&format!("-{command}")]).await;
        let result =
            if is_put { queue.try_put("x").await } else { queue.try_get().await.map(drop) };
        let err = result.unwrap_err();
        let QueueError::Store(StoreError::PermissionDenied { detail }) = &err else {
            panic!("{command}: {err:?}")
        };
        assert!(detail.to_lowercase().contains(command), "{detail}");
        assert_eq!(place.dump().await, before, "{command}");
    }
}
