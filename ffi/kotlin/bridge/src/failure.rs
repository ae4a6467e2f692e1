//! Errors as exceptions of the class `rs.shohin.ShohinException`.

use jni::errors::ErrorPolicy;
use jni::objects::JThrowable;
use jni::{Env, jni_sig, jni_str};
use shohin_ffi::code::{shohin_code_name, shohin_error};
use std::any::Any;
use std::ffi::CStr;

/// Why a native method failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A call of the C interface failed.
    Shohin(Box<shohin_error>),
    /// JNI failed, or an exception is pending.
    Jni(jni::errors::Error),
}

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl From<jni::errors::Error> for Failure {
    fn from(error: jni::errors::Error) -> Failure {
        Failure::Jni(error)
    }
}

impl Failure {
    fn code_and_message(&self) -> (String, String) {
        match self {
            Failure::Jni(error) => ("other".into(), error.to_string()),
            Failure::Shohin(error) => {
                let name = shohin_code_name(error.code);
                // SAFETY: names are static; the message was written by the library, with a NUL at its end.
                let (name, message) = unsafe {
                    let name = if name.is_null() { c"other" } else { CStr::from_ptr(name) };
                    (name, CStr::from_ptr(error.message.as_ptr()))
                };
                (name.to_string_lossy().into(), message.to_string_lossy().into())
            }
        }
    }
}

/// Throws failures and panics.
pub(crate) struct Throw;

fn throw(env: &mut Env<'_>, code: &str, message: &str) -> jni::errors::Result<()> {
    let class = env.find_class(jni_str!("rs/shohin/ShohinException"))?;
    let (code, message) = (env.new_string(code)?, env.new_string(message)?);
    let signature = jni_sig!("(Ljava/lang/String;Ljava/lang/String;)V");
    let exception = env.new_object(class, signature, &[(&code).into(), (&message).into()])?;
    let exception = env.cast_local::<JThrowable<'_>>(exception)?;
    // It returns the exception as an error.
    let _ = env.throw(exception);
    Ok(())
}

impl<T: Default> ErrorPolicy<T, Failure> for Throw {
    type Captures<'local: 'method, 'method> = ();

    fn on_error<'local: 'method, 'method>(
        env: &mut Env<'local>,
        (): &mut (),
        failure: Failure,
    ) -> jni::errors::Result<T> {
        if !env.exception_check() {
            let (code, message) = failure.code_and_message();
            throw(env, &code, &message)?;
        }
        Ok(T::default())
    }

    fn on_panic<'local: 'method, 'method>(
        env: &mut Env<'local>,
        (): &mut (),
        panic: Box<dyn Any + Send>,
    ) -> jni::errors::Result<T> {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        throw(env, "panic", &format!("a bug in the library: {text}"))?;
        Ok(T::default())
    }
}
