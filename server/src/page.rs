//! The page to chat with the model, which is one file.

use axum::http::header;
use axum::response::{Html, IntoResponse, Response};

/// The page. `{nonce}` stands for what its style and script must have to be run.
const PAGE: &str = include_str!("page.html");

/// The page with a new nonce: nothing else in it may run, and it may only speak to its server.
pub(crate) fn answer(random: u64) -> Response {
    let nonce = format!("{random:016x}");
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    let headers = [
        (header::CONTENT_SECURITY_POLICY, policy.as_str()),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, Html(PAGE.replace("{nonce}", &nonce))).into_response()
}
