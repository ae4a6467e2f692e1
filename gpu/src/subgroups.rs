//! Subgroups in browsers, where wgpu cannot ask for them.

use std::cell::Cell;
use std::rc::Rc;
use wgpu::web_sys::js_sys::{Array, Function, Object, Promise, Proxy, Reflect, global};
use wgpu::web_sys::wasm_bindgen::closure::Closure;
use wgpu::web_sys::wasm_bindgen::{JsCast, JsValue};

/// What wgpu calls.
const REQUEST: &str = "requestDevice";

/// A proxy's trap `apply`: of the function, its `this` and its arguments. It does not throw, which would leave
/// the browser's function replaced.
type Apply = dyn FnMut(Function, JsValue, Array) -> JsValue;

/// Adds subgroups to the device that `ask` requests before it returns, if its adapter has them: meanwhile the
/// browser's function for that is another. Also says whether they were asked for.
pub(crate) fn added<T>(ask: impl FnOnce() -> T) -> (T, bool) {
    let asked = Rc::new(Cell::new(false));
    let noted = Rc::clone(&asked);
    let apply = Closure::<Apply>::new(move |request: Function, adapter: JsValue, given: Array| {
        noted.set(add(&adapter, &given).unwrap_or(false));
        request.apply(&adapter, &given).unwrap_or_else(|error| Promise::reject(&error).into())
    });
    let replaced = replace(apply.as_ref());
    let answer = ask();
    if let Ok((prototype, request)) = replaced {
        let _ = Reflect::set(&prototype, &REQUEST.into(), &request);
    }
    (answer, asked.get())
}

/// Adds subgroups to a request, if the adapter has them. Returns whether it has.
fn add(adapter: &JsValue, given: &Array) -> Result<bool, JsValue> {
    let supported = has(adapter, "features", "subgroups")?;
    if supported {
        let features: Array = get(&given.get(0), "requiredFeatures")?.dyn_into()?;
        features.push(&"subgroups".into());
    }
    Ok(supported)
}

/// Has `apply` called instead of the browser's function. Returns the owner of that, and it.
fn replace(apply: &JsValue) -> Result<(JsValue, JsValue), JsValue> {
    let global = global();
    // The kernels use the number of the subgroup, which came later.
    if !has(&get(&get(&global, "navigator")?, "gpu")?, "wgslLanguageFeatures", "subgroup_id")? {
        return Err(JsValue::UNDEFINED);
    }
    let prototype = get(&get(&global, "GPUAdapter")?, "prototype")?;
    let request = get(&prototype, REQUEST)?;
    let handler = Object::new();
    Reflect::set(&handler, &"apply".into(), apply)?;
    Reflect::set(&prototype, &REQUEST.into(), &Proxy::new(&request, &handler))?;
    Ok((prototype, request))
}

fn get(owner: &JsValue, name: &str) -> Result<JsValue, JsValue> {
    Reflect::get(owner, &name.into())
}

/// Whether a set of `owner` has a member of this name.
fn has(owner: &JsValue, set: &str, name: &str) -> Result<bool, JsValue> {
    let set = get(owner, set)?;
    let has: Function = get(&set, "has")?.dyn_into()?;
    Ok(has.call1(&set, &name.into())?.is_truthy())
}
