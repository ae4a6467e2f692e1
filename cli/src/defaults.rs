//! Options that the command line leaves to the environment, or to the user's file of defaults.

use crate::error::{CliError, Result, report_usage};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use std::env;
use std::error::Error as _;
use std::fmt::Display;
use std::process::ExitCode;

/// Environment variables, and the options that they set. One that is empty is as one that is not set.
const VARIABLES: [(&str, &str); 8] = [
    ("SHOHIN_MODEL", "model"),
    ("SHOHIN_DEVICE", "device"),
    ("SHOHIN_HOST", "host"),
    ("SHOHIN_PORT", "port"),
    ("SHOHIN_API_KEY", "api_key"),
    ("SHOHIN_API_KEY_FILE", "api_key_file"),
    ("SHOHIN_LOG", "log"),
    ("SHOHIN_WEIGHT_CACHE", "weight_cache"),
];

/// Values of an option, and where they are from.
struct Given {
    id: String,
    values: Vec<String>,
    from: String,
}

/// Reads the arguments, and what they leave to the environment and the file of defaults.
pub(crate) fn read(command: Command) -> std::result::Result<ArgMatches, ExitCode> {
    let matches = command.clone().try_get_matches().map_err(report_usage)?;
    let with = with_defaults(command, &matches).map_err(|error| error.report())?;
    match with {
        None => Ok(matches),
        Some(command) => command.try_get_matches().map_err(report_usage),
    }
}

/// The description of the command line with the defaults of the command that was given, if it has some.
fn with_defaults(command: Command, matches: &ArgMatches) -> Result<Option<Command>> {
    let Some((name, given)) = matches.subcommand() else { return Ok(None) };
    let Some(sub) = command.find_subcommand(name).cloned() else { return Ok(None) };
    let mut all = environment();
    for other in from_file(&command, &sub)? {
        if all.iter().all(|default| default.id != other.id) {
            all.push(other);
        }
    }
    let (mut with, mut changed) = (sub.clone(), false);
    for Given { id, values, from } in all {
        let Some(arg) = sub.get_arguments().find(|arg| arg.get_id() == id.as_str()) else { continue };
        check(&sub, arg, &values, &from)?;
        let is_typed = |id: &str| {
            let source = given.try_contains_id(id).is_ok().then(|| given.value_source(id)).flatten();
            source == Some(ValueSource::CommandLine)
        };
        let excludes =
            |a: &Arg, b: &Arg| sub.get_arg_conflicts_with(a).iter().any(|other| other.get_id() == b.get_id());
        let excluded = sub
            .get_arguments()
            .any(|other| is_typed(other.get_id().as_str()) && (excludes(arg, other) || excludes(other, arg)));
        if !is_typed(&id) && !excluded {
            with = with.mut_arg(id, |arg| arg.default_values(values));
            changed = true;
        }
    }
    let name = name.to_owned();
    Ok(changed.then(|| command.mut_subcommand(name, |_| with)))
}

/// What the environment says.
fn environment() -> Vec<Given> {
    let set = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    let given = VARIABLES.iter().filter_map(|(variable, id)| {
        Some(Given { id: (*id).into(), values: vec![set(variable)?], from: (*variable).into() })
    });
    given.collect()
}

/// Refuses values that the option does not take.
fn check(sub: &Command, arg: &Arg, values: &[String], from: &dyn Display) -> Result {
    let long = arg.get_long().unwrap_or_default();
    let wrong =
        |value: &str, problem: String| Err(CliError::usage(format_args!("{from} is {value:?}, {problem}")));
    if values.len() > 1
        && !matches!(arg.get_action(), ArgAction::Append)
        && arg.get_value_delimiter().is_none()
    {
        return wrong(&values.join(", "), "expected one value".into());
    }
    for value in values {
        let typed = match (arg.get_action(), value.as_str()) {
            (ArgAction::SetTrue, "true" | "false") => continue,
            (ArgAction::SetTrue, _) => return wrong(value, "expected true or false".into()),
            _ => format!("--{long}={value}"),
        };
        let Err(error) = sub.clone().try_get_matches_from([sub.get_name(), &typed]) else { continue };
        match error.kind() {
            ErrorKind::ValueValidation => {
                let problem = error.source().map(ToString::to_string).unwrap_or_default();
                return wrong(value, problem);
            }
            ErrorKind::InvalidValue => {
                let known = match error.get(ContextKind::ValidValue) {
                    Some(ContextValue::Strings(known)) => known.join(", "),
                    _ => "a value".into(),
                };
                return wrong(value, format!("expected one of {known}"));
            }
            // What else the command needs is on the command line.
            _ => {}
        }
    }
    Ok(())
}

/// WASI programs have no directories of a user.
#[cfg(target_os = "wasi")]
fn from_file(_: &Command, _: &Command) -> Result<Vec<Given>> {
    Ok(Vec::new())
}

#[cfg(not(target_os = "wasi"))]
use file::from_file;

#[cfg(not(target_os = "wasi"))]
mod file {
    use super::Given;
    use crate::error::{CliError, Result, file_error};
    use crate::input::read_text;
    use crate::nearest::nearest;
    use clap::{Arg, Command};
    use std::env;
    use std::path::{Path, PathBuf};
    use toml::{Table, Value};

    /// The file, if there is one.
    fn path() -> Result<Option<PathBuf>> {
        match env::var_os("SHOHIN_CONFIG").filter(|path| !path.is_empty()) {
            Some(path) if path == "none" => Ok(None),
            Some(path) => Ok(Some(path.into())),
            None => {
                let path = dirs::config_dir().map(|dir| dir.join("shohin").join("config.toml"));
                path.map_or(Ok(None), |path| match path.try_exists() {
                    Ok(there) => Ok(Some(path).filter(|_| there)),
                    Err(error) => Err(file_error("read", &path, &error)),
                })
            }
        }
    }

    /// What the file says of a command: options by their long names, for all commands that have them, or in a table with the
    /// name of one.
    pub(super) fn from_file(command: &Command, sub: &Command) -> Result<Vec<Given>> {
        let Some(path) = path()? else { return Ok(Vec::new()) };
        let refuse = |what: String| CliError::usage(format_args!("{}: {what}", path.display()));
        let table: Table = read_text(&path)?.parse().map_err(|error: toml::de::Error| {
            let line = error.span().map_or(1, |span| line_of(&path, span.start));
            refuse(format!("line {line}: {}", error.message()))
        })?;
        let commands: Vec<&Command> = command.get_subcommands().collect();
        let mut all = Vec::new();
        // Those for one command first, as they count more.
        let is_table = |value: &Value| value.is_table();
        let (tables, plain): (Vec<_>, Vec<_>) = table.iter().partition(|(_, value)| is_table(value));
        for (key, value) in tables {
            let Some(of) = commands.iter().find(|of| of.get_name() == key) else {
                let names = commands.iter().map(|of| of.get_name());
                return Err(refuse(unknown("command", key, names)));
            };
            for (key, value) in value.as_table().into_iter().flatten() {
                let Some(arg) = option(of, key) else {
                    return Err(refuse(unknown("option", key, options(of))));
                };
                if of.get_name() == sub.get_name() {
                    all.push(given(&path, arg, key, value).map_err(refuse)?);
                }
            }
        }
        for (key, value) in plain {
            if !commands.iter().any(|of| option(of, key).is_some()) {
                let all = commands.iter().flat_map(|of| options(of));
                return Err(refuse(unknown("option", key, all)));
            }
            if let Some(arg) = option(sub, key)
                && all.iter().all(|before| before.id != arg.get_id().as_str())
            {
                all.push(given(&path, arg, key, value).map_err(refuse)?);
            }
        }
        Ok(all)
    }

    fn line_of(path: &Path, at: usize) -> usize {
        let text = std::fs::read(path).unwrap_or_default();
        1 + text.iter().take(at).filter(|byte| **byte == b'\n').count()
    }

    fn unknown<'n>(what: &str, key: &str, names: impl Iterator<Item = &'n str>) -> String {
        match nearest(key, names) {
            Some(name) => format!("there is no {what} {key:?}; did you mean {name}?"),
            None => format!("there is no {what} {key:?}"),
        }
    }

    /// The options of a command that can have a default: not those that it needs.
    fn options(of: &Command) -> impl Iterator<Item = &str> {
        let can =
            |arg: &&Arg| !arg.is_required_set() && !["help", "version"].contains(&arg.get_id().as_str());
        of.get_arguments().filter(can).filter_map(Arg::get_long)
    }

    fn option<'c>(of: &'c Command, key: &str) -> Option<&'c Arg> {
        let wanted = key.replace('_', "-");
        let long = options(of).find(|long| *long == wanted)?;
        of.get_arguments().find(|arg| arg.get_long() == Some(long))
    }

    fn given(path: &Path, arg: &Arg, key: &str, value: &Value) -> std::result::Result<Given, String> {
        let text = |value: &Value| match value {
            Value::String(text) => Ok(text.clone()),
            Value::Integer(number) => Ok(number.to_string()),
            Value::Float(number) => Ok(number.to_string()),
            Value::Boolean(is) => Ok(is.to_string()),
            other => Err(format!(
                "{key} is of the kind {}, expected a text, a number, true or false, or a list of them",
                other.type_str()
            )),
        };
        let mut values: Vec<String> = match value {
            Value::Array(values) => values.iter().map(text).collect::<std::result::Result<_, _>>()?,
            value => vec![text(value)?],
        };
        // An option that needs no value.
        if arg.get_num_args().is_some_and(|count| count.min_values() == 0) && value.as_bool() == Some(true) {
            values = vec![String::new()];
        }
        Ok(Given { id: arg.get_id().to_string(), values, from: format!("{}: {key}", path.display()) })
    }
}
