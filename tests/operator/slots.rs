//! Semaphores: slots made, changed and removed on the broker as the spec says.

use std::time::Duration;

use lockkeeper::api::Semaphore;

use crate::world::{in_a_world, kubectl};

#[tokio::test]
async fn the_broker_has_exactly_the_slots_of_the_spec_after_each_apply() {
    in_a_world("resize", async |world| {
        let _operator = world.operator().await;
        for slots in [3, 1000, 5, 0, 3] {
            world.semaphore("deploy", &format!("slots: {slots}")).await;
            let ready = world
                .until("deploy", "Ready", Duration::from_secs(20), |s: &Semaphore| {
                    crate::world::is_ready(s)
                })
                .await;
            assert_eq!(world.queues().await, world.slot_queues("deploy", slots), "{slots} slots");
            let status = ready.status.unwrap();
            assert_eq!(status.slots, Some(i32::try_from(slots).unwrap()));
        }
        let table = kubectl(&world, &["get", "sem"]).await.unwrap();
        assert!(table.starts_with("NAME     SLOTS   HELD   FREE   READY   AGE"), "{table}");
        println!("{table}");
    })
    .await;
}
