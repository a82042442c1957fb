//! Reads the API server's answers, with a bound for their memory: large ones one at a
//! time, and a list of large objects in small pages. Each tenant may create objects of
//! 1.5 MB, as many as its quota allows. See `reduced` for the fields that are kept.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::http::{Method, Request, Response, Uri};
use hyper::body::{Body as _, Bytes};
use kube::Client;
use kube::client::Body;
use tokio::sync::{Semaphore, SemaphorePermit};
use tower::BoxError;

/// Size of a page of a list. Of objects without much metadata, a page has less than 1 MiB.
pub const PAGE: u32 = 100;

/// Size of a page of a list of large objects.
const SMALL_PAGE: u32 = 5;

/// Size above which a page of a list is requested again as a small one.
const PAGE_BYTES: usize = 4 * 1024 * 1024;

/// Size above which only one answer at a time is read.
const LARGE: usize = 256 * 1024;

/// Time for the rest of a large answer.
const REST: Duration = Duration::from_secs(30);

/// The answers to the requests of one client.
pub struct Answers {
    large: Semaphore,
    /// How many of the next pages are small.
    small_pages: AtomicU32,
}

impl Default for Answers {
    fn default() -> Self {
        Self { large: Semaphore::new(1), small_pages: AtomicU32::new(0) }
    }
}

impl Answers {
    /// Sends a request and reads its answer. The answer to a watch is not read.
    pub async fn to(
        &self,
        client: &Client,
        request: Request<Body>,
    ) -> Result<Response<Body>, BoxError> {
        let small = small_page(request.method(), request.uri());
        if let Some(small) = &small
            && self.small_pages.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
        {
            let small = like(&request, small)?;
            return self.read(client.send(small).await?, usize::MAX).await;
        }
        if is_watch(request.uri()) {
            return Ok(client.send(request).await?);
        }
        let Some(small) = small else {
            return self.read(client.send(request).await?, usize::MAX).await;
        };
        let small = like(&request, &small)?;
        match self.read(client.send(request).await?, PAGE_BYTES).await {
            Err(error) if error.is::<TooLarge>() => {
                // The rest of the page that was too large.
                self.small_pages.store(PAGE / SMALL_PAGE - 1, Ordering::Relaxed);
                self.read(client.send(small).await?, usize::MAX).await
            }
            answer => answer,
        }
    }

    /// Reads an answer of at most `most` bytes.
    async fn read(&self, answer: Response<Body>, most: usize) -> Result<Response<Body>, BoxError> {
        let (parts, mut body) = answer.into_parts();
        let mut start = Vec::new();
        let is_whole = part(&mut body, &mut start, LARGE.min(most)).await?;
        if !is_whole {
            let _turn: SemaphorePermit<'_> = self.large.acquire().await?;
            let rest = part(&mut body, &mut start, most);
            if !tokio::time::timeout(REST, rest).await?? {
                return Err(TooLarge.into());
            }
        }
        Ok(Response::from_parts(parts, Body::from(Bytes::from(start))))
    }
}

/// An answer is larger than allowed.
#[derive(Debug, thiserror::Error)]
#[error("the answer is too large")]
struct TooLarge;

/// Adds frames of a body until it ends or has more than `most` bytes. Returns whether it
/// has ended.
async fn part(body: &mut Body, text: &mut Vec<u8>, most: usize) -> Result<bool, kube::Error> {
    while text.len() <= most {
        let Some(frame) = poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await else {
            return Ok(true);
        };
        if let Some(data) = frame?.data_ref() {
            text.extend_from_slice(data);
        }
    }
    Ok(false)
}

fn less(pages: u32) -> Option<u32> {
    pages.checked_sub(1)
}

fn is_watch(uri: &Uri) -> bool {
    uri.query().is_some_and(|query| query.split('&').any(|part| part == "watch=true"))
}

/// Returns the request for a small page instead of a page of [`PAGE`] objects.
fn small_page(method: &Method, uri: &Uri) -> Option<Uri> {
    let page = format!("limit={PAGE}");
    let query = uri.query().filter(|_| method == Method::GET)?;
    let at = query.split('&').position(|part| part == page)?;
    let mut parts: Vec<&str> = query.split('&').collect();
    let small = format!("limit={SMALL_PAGE}");
    parts[at] = &small;
    format!("{}?{}", uri.path(), parts.join("&")).parse().ok()
}

/// Returns a request for `uri` that is otherwise like `request` and has no body.
fn like(request: &Request<Body>, uri: &Uri) -> Result<Request<Body>, BoxError> {
    let mut small = Request::builder().method(request.method()).uri(uri);
    if let Some(headers) = small.headers_mut() {
        headers.clone_from(request.headers());
    }
    Ok(small.body(Body::empty())?)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// A client whose answers to these paths have as many bytes as objects in their page,
    /// times a size. Records the paths.
    fn client(size: usize) -> (Client, Arc<Mutex<Vec<String>>>) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let record = Arc::clone(&asked);
        let service = tower::service_fn(move |request: Request<Body>| {
            let path = request.uri().to_string();
            let page = if path.contains("limit=100") { PAGE } else { SMALL_PAGE };
            record.lock().unwrap().push(path);
            let text = vec![b'x'; size * usize::try_from(page).unwrap()];
            std::future::ready(Ok::<_, BoxError>(Response::new(Body::from(text))))
        });
        (Client::new(service, "default"), asked)
    }

    async fn ask(answers: &Answers, client: &Client, path: &str) -> usize {
        let request = Request::builder().uri(path).body(Body::empty()).unwrap();
        let (_, mut body) = answers.to(client, request).await.unwrap().into_parts();
        let mut text = Vec::new();
        assert!(part(&mut body, &mut text, usize::MAX).await.unwrap());
        text.len()
    }

    #[tokio::test]
    async fn a_list_of_large_objects_is_read_in_small_pages() {
        const LIST: &str = "/apis/x?limit=100&continue=a%2Fb";
        let (small, asked) = client(1000);
        let answers = Answers::default();
        assert_eq!(ask(&answers, &small, LIST).await, 100_000);
        assert_eq!(asked.lock().unwrap().len(), 1);
        let (large, asked) = client(1_500_000);
        for _ in 0..=PAGE / SMALL_PAGE {
            assert_eq!(ask(&answers, &large, LIST).await, 7_500_000);
        }
        let asked = asked.lock().unwrap();
        let pages = asked.iter().map(|path| path.contains("limit=100"));
        assert!(pages.enumerate().all(|(at, page)| page == (at == 0 || at == 21)), "{asked:?}");
        assert!(asked[1].ends_with("?limit=5&continue=a%2Fb"), "{asked:?}");
    }

    #[tokio::test]
    async fn large_answers_are_read_one_at_a_time_and_others_are_not_delayed() {
        let answers = Answers::default();
        let turn = answers.large.acquire().await.unwrap();
        let (client_of_small, _) = client(1000);
        ask(&answers, &client_of_small, "/api/x").await;
        let (client_of_large, asked) = client(1_500_000);
        let large = ask(&answers, &client_of_large, "/api/x");
        tokio::pin!(large);
        let waits = tokio::time::timeout(Duration::from_secs(1), &mut large).await.is_err();
        assert!(waits && asked.lock().unwrap().len() == 1);
        drop(turn);
        assert_eq!(large.await, 7_500_000);
    }
}
