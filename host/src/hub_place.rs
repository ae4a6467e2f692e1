//! Where the environment says that the Hub's files are, and how its server is reached, as the Hub's own tools read it.

use crate::error::{Error, Result};
use std::env;
use std::fs;
use std::path::PathBuf;
use ureq::Proxy;

/// A variable. One that is empty is as one that is not set.
pub(crate) fn set(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// A variable that names a path, which may begin with `~` and have variables in it. Unknown ones stay as they are.
fn path(name: &str) -> Option<PathBuf> {
    let home = || dirs::home_dir().map(|home| home.to_string_lossy().into_owned());
    let value = set(name)?;
    Some(PathBuf::from(shellexpand::full_with_context_no_errors(&value, home, set).into_owned()))
}

/// The directory of all that the Hub's tools keep.
fn home() -> Option<PathBuf> {
    path("HF_HOME").or_else(|| {
        let cache = path("XDG_CACHE_HOME").or_else(|| Some(dirs::home_dir()?.join(".cache")));
        Some(cache?.join("huggingface"))
    })
}

/// The directory of models; `None` without a home directory.
pub(crate) fn cache() -> Option<PathBuf> {
    let cache = path("HF_HUB_CACHE").or_else(|| path("HUGGINGFACE_HUB_CACHE"));
    cache.or_else(|| Some(home()?.join("hub")))
}

/// The user's token: from the environment, or what `hf auth login` has kept.
pub(crate) fn token() -> Option<String> {
    let kept = || {
        let file = path("HF_TOKEN_PATH").or_else(|| Some(home()?.join("token")))?;
        fs::read_to_string(file).ok()
    };
    let token = set("HF_TOKEN").or_else(|| set("HUGGING_FACE_HUB_TOKEN")).or_else(kept)?;
    Some(token.trim().to_string()).filter(|token| !token.is_empty())
}

/// The proxy for an address.
///
/// # Errors
/// If a variable is set to something else than an address of a proxy.
pub(crate) fn proxy(endpoint: &str) -> Result<Option<Proxy>> {
    let secure = ["HTTPS_PROXY", "https_proxy"];
    let plain = ["http_proxy", "HTTP_PROXY"];
    let all = ["ALL_PROXY", "all_proxy"];
    let order = if endpoint.starts_with("https:") { [secure, all, plain] } else { [plain, all, secure] };
    let Some((name, found)) = order.concat().into_iter().find_map(|name| Some((name, set(name)?))) else {
        return Ok(None);
    };
    let expected = "an address such as http://host:port or socks5://host:port";
    let wrong = |_| Error::Environment { name, found: found.clone(), expected: expected.into() };
    let proxy = Proxy::new(&found).map_err(wrong)?;
    let Some(without) = set("NO_PROXY").or_else(|| set("no_proxy")) else { return Ok(Some(proxy)) };
    let mut builder = Proxy::builder(proxy.protocol()).host(proxy.host()).port(proxy.port());
    if let Some(username) = proxy.username() {
        builder = builder.username(username);
    }
    if let Some(password) = proxy.password() {
        builder = builder.password(password);
    }
    for host in without.split(',').map(str::trim).filter(|host| !host.is_empty()) {
        builder = builder.no_proxy(host);
    }
    builder.build().map(Some).map_err(wrong)
}
