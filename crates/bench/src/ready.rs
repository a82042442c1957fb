//! Watches objects until a number of them are ready.

use std::collections::HashSet;

use futures::StreamExt;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource, ResourceExt};
use lockkeeper_testkit::world::PATIENCE;
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;

use crate::Result;

/// Starts to watch. The receiver gets the result when this many objects are ready, including
/// those that already exist.
pub async fn watch<K>(
    api: &Api<K>,
    count: usize,
    is_ready: fn(&K) -> bool,
) -> Result<oneshot::Receiver<Result<()>>>
where
    K: Resource + Clone + std::fmt::Debug + DeserializeOwned + Send + 'static,
{
    // Resumes a watch that the API server ended.
    let mut events = watcher(api.clone(), watcher::Config::default()).default_backoff().boxed();
    let mut ready = HashSet::new();
    loop {
        match events.next().await.ok_or("no watch")?? {
            Event::InitApply(object) if is_ready(&object) => {
                ready.insert(object.name_any());
            }
            Event::InitDone => break,
            _ => {}
        }
    }
    let (answer, all_ready) = oneshot::channel();
    let counting = async move {
        while ready.len() < count {
            let event = tokio::time::timeout(PATIENCE, events.next())
                .await
                .map_err(|_| format!("{} of {count} objects are Ready", ready.len()))?;
            match event.ok_or("the watch ended")? {
                Ok(Event::Apply(object) | Event::InitApply(object)) if is_ready(&object) => {
                    ready.insert(object.name_any());
                }
                Ok(_) => {}
                Err(error) => println!("    the watch is taken up again: {error}"),
            }
        }
        Ok(())
    };
    tokio::spawn(async move {
        // There is no receiver any more if the run failed before.
        let _ = answer.send(counting.await);
    });
    Ok(all_ready)
}
