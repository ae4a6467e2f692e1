//! Who may ask: by key, by origin and by the name of the server.

use crate::app::App;
use crate::error::ApiError;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use std::net::IpAddr;
use subtle::ConstantTimeEq;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

/// The header of an answer that names the fields of the request that were left aside.
pub(crate) const LEFT_ASIDE: HeaderName = HeaderName::from_static("shohin-left-aside");
/// The header of an answer that says how the model was told of tools, if its template has no form for them.
pub(crate) const TOOLS: HeaderName = HeaderName::from_static("shohin-tools");

/// The origins that may ask; `None` for none, an error for one that is not an origin.
pub(crate) fn cors(origins: &[String]) -> Result<Option<CorsLayer>, String> {
    if origins.is_empty() {
        return Ok(None);
    }
    let layer = CorsLayer::new()
        .allow_methods([Method::GET, Method::POST, Method::DELETE])
        // The clients of OpenAI and Anthropic have many of their own.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers([header::RETRY_AFTER, LEFT_ASIDE, TOOLS]);
    if origins == ["*"] {
        return Ok(Some(layer.allow_origin(AllowOrigin::any())));
    }
    let value = |origin: &String| match origin.split_once("://") {
        Some((_, host)) if !host.is_empty() && !host.contains('/') => {
            HeaderValue::from_str(origin).map_err(|_| origin.clone())
        }
        _ => Err(origin.clone()),
    };
    let values: Vec<HeaderValue> = origins.iter().map(value).collect::<Result<_, _>>()?;
    Ok(Some(layer.allow_origin(values)))
}

/// The key after the scheme, whose case does not count.
fn bearer(given: &[u8]) -> Option<&[u8]> {
    let (scheme, key) = given.split_at_checked(b"Bearer".len())?;
    let is_bearer = scheme.eq_ignore_ascii_case(b"Bearer") && key.starts_with(b" ");
    is_bearer.then(|| key.trim_ascii())
}

impl App {
    /// Refuses requests without the key, and of pages that are not allowed to ask: a browser would send them, and only keep
    /// the answer from the page.
    pub(crate) fn authorize(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        if let Some(origin) = headers.get(header::ORIGIN) {
            let allowed =
                self.origins.iter().any(|allowed| allowed == "*" || allowed.as_bytes() == origin.as_bytes());
            if !allowed && !self.is_own(origin, headers.get(header::HOST)) {
                return Err(ApiError::Origin(String::from_utf8_lossy(origin.as_bytes()).into_owned()));
            }
        } else {
            // A browser names no origin if a page reads what is its own.
            self.check_host(headers)?;
        }
        let Some(key) = &self.key else { return Ok(()) };
        let given = headers.get(header::AUTHORIZATION).and_then(|given| bearer(given.as_bytes()));
        let given = given.or_else(|| headers.get("x-api-key").map(HeaderValue::as_bytes)).unwrap_or_default();
        if bool::from(given.ct_eq(key.as_bytes())) { Ok(()) } else { Err(ApiError::Unauthorized) }
    }

    /// Refuses a request by a name that a page elsewhere can have, too.
    pub(crate) fn check_host(&self, headers: &HeaderMap) -> Result<(), ApiError> {
        // Every browser names it.
        let Some(host) = headers.get(header::HOST) else { return Ok(()) };
        if self.origins == ["*"] || host.to_str().is_ok_and(|host| self.believes(host)) {
            return Ok(());
        }
        Err(ApiError::Host(String::from_utf8_lossy(host.as_bytes()).into_owned()))
    }

    /// Whether a page of this name may ask. A page elsewhere can give its name this machine's address: without a key, only
    /// addresses are believed, and names that nobody can register.
    fn believes(&self, host: &str) -> bool {
        if self.key.is_some() {
            return true;
        }
        let Ok(authority) = host.parse::<Authority>() else { return false };
        let name = authority.host().trim_end_matches('.').to_ascii_lowercase();
        let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
        let is_private = match name.rsplit_once('.') {
            None => !name.is_empty(),
            Some((_, last)) => matches!(last, "localhost" | "local" | "internal"),
        };
        address || is_private
    }

    /// Whether a page of this origin is the server's own.
    fn is_own(&self, origin: &HeaderValue, host: Option<&HeaderValue>) -> bool {
        let (Ok(origin), Some(Ok(host))) = (origin.to_str(), host.map(HeaderValue::to_str)) else {
            return false;
        };
        let same = origin.split_once("://").is_some_and(|(scheme, name)| {
            matches!(scheme, "http" | "https") && name.eq_ignore_ascii_case(host)
        });
        same && self.believes(host)
    }
}
