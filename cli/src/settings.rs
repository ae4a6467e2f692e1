//! `/set` in a chat: options of the next replies by any of their names.

use crate::error::{CliError, Result};
use shohin::{SamplerConfig, TurnOptions};

/// Other names of options, as other programs have them.
const ALIASES: [(&str, &str); 16] = [
    ("temp", "temperature"),
    ("topk", "top_k"),
    ("topp", "top_p"),
    ("minp", "min_p"),
    ("typical", "typical_p"),
    ("typ_p", "typical_p"),
    ("repeat_penalty", "repetition_penalty"),
    ("presence", "presence_penalty"),
    ("frequency", "frequency_penalty"),
    ("repeat_last_n", "penalty_last_n"),
    ("dry_penalty_last_n", "dry_last_n"),
    ("n", "max_tokens"),
    ("n_predict", "max_tokens"),
    ("num_predict", "max_tokens"),
    ("predict", "max_tokens"),
    ("max_new_tokens", "max_tokens"),
];

/// Changes an option, which is `NAME VALUE`; returns what to tell. Without one, lists all.
pub(crate) fn set(options: &mut TurnOptions, argument: &str) -> Result<String> {
    let mut config = options.sampler;
    if argument.is_empty() {
        let most = options.max_tokens.map_or("until the context is full".into(), |most| most.to_string());
        let mut lines: Vec<String> =
            places(&mut config).iter().map(|(n, v)| format!("  {n:20}{}", v.shown())).collect();
        lines.push(format!("  {:20}{most}", "max_tokens"));
        return Ok(lines.join("\n"));
    }
    // As in Ollama.
    let argument = argument.strip_prefix("parameter ").unwrap_or(argument).trim_start();
    let (name, value) = argument.split_once(char::is_whitespace).unwrap_or((argument, ""));
    let value = value.trim_start();
    let wanted = name.trim_start_matches('-').replace('-', "_");
    let wanted = ALIASES.iter().find(|(alias, _)| *alias == wanted).map_or(wanted.as_str(), |(_, name)| name);
    let needs =
        |expected: &str| Err(CliError::new(format_args!("/set {name} needs {expected}, found {value:?}")));
    match wanted {
        "max_tokens" => match value.parse() {
            Ok(most) => options.max_tokens = Some(most),
            Err(_) => return needs("a whole number, 0 or more"),
        },
        "preset" => match SamplerConfig::preset(value) {
            Some(preset) => options.sampler = SamplerConfig { seed: config.seed, ..preset },
            None => return needs(&format!("one of {}", SamplerConfig::PRESETS.join(", "))),
        },
        _ => {
            let mut all = places(&mut config);
            let Some((_, place)) = all.iter_mut().find(|(n, _)| *n == wanted) else {
                let names = names().join(", ");
                return Err(CliError::new(format_args!(
                    "{name} is not a sampling option; expected one of {names}"
                )));
            };
            if !place.put(value) {
                return needs(place.expected());
            }
            // As it was typed, not as the nearest float.
            let typed = |error| match error {
                shohin::core::Error::Option { what, found, expected } => {
                    shohin::core::Error::Option { what, found: value.parse().unwrap_or(found), expected }
                }
                other => other,
            };
            config.check().map_err(typed)?;
            options.sampler = config;
        }
    }
    Ok(format!("({wanted} is now {value})"))
}

/// The names of all options.
pub(crate) fn names() -> Vec<&'static str> {
    let mut config = SamplerConfig::default();
    let all = places(&mut config);
    all.iter().map(|(name, _)| *name).chain(["max_tokens", "preset"]).collect()
}

/// A mutable field of the sampler's options.
enum Place<'c> {
    Float(&'c mut f32),
    Count(&'c mut usize),
    Seed(&'c mut u64),
}

impl Place<'_> {
    fn shown(&self) -> String {
        match self {
            Place::Float(x) => x.to_string(),
            Place::Count(n) => n.to_string(),
            Place::Seed(n) => n.to_string(),
        }
    }

    fn expected(&self) -> &'static str {
        match self {
            Place::Float(_) => "a number",
            Place::Count(_) | Place::Seed(_) => "a whole number, 0 or more",
        }
    }

    fn put(&mut self, value: &str) -> bool {
        match self {
            Place::Float(x) => value.parse().map(|v| **x = v).is_ok(),
            Place::Count(n) => value.parse().map(|v| **n = v).is_ok(),
            Place::Seed(n) => value.parse().map(|v| **n = v).is_ok(),
        }
    }
}

fn places(c: &mut SamplerConfig) -> [(&'static str, Place<'_>); 14] {
    use Place::{Count, Float, Seed};
    [
        ("temperature", Float(&mut c.temperature)),
        ("top_k", Count(&mut c.top_k)),
        ("top_p", Float(&mut c.top_p)),
        ("min_p", Float(&mut c.min_p)),
        ("typical_p", Float(&mut c.typical_p)),
        ("repetition_penalty", Float(&mut c.repetition_penalty)),
        ("presence_penalty", Float(&mut c.presence_penalty)),
        ("frequency_penalty", Float(&mut c.frequency_penalty)),
        ("penalty_last_n", Count(&mut c.penalty_last_n)),
        ("dry_multiplier", Float(&mut c.dry_multiplier)),
        ("dry_base", Float(&mut c.dry_base)),
        ("dry_allowed_length", Count(&mut c.dry_allowed_length)),
        ("dry_last_n", Count(&mut c.dry_last_n)),
        ("seed", Seed(&mut c.seed)),
    ]
}

#[cfg(test)]
mod tests {
    use super::{ALIASES, names, set};
    use shohin::TurnOptions;

    #[test]
    fn every_name_of_an_option_sets_it() {
        for name in ALIASES.iter().map(|(alias, _)| *alias).chain(names()) {
            let mut options = TurnOptions::default();
            let value = if name == "preset" { "creative" } else { "1" };
            let said = set(&mut options, &format!("{name} {value}")).unwrap();
            assert!(ALIASES.iter().all(|(alias, _)| !said.contains(&format!("({alias} "))), "{said}");
        }
        let mut options = TurnOptions::default();
        set(&mut options, "parameter temperature 0.25").unwrap();
        set(&mut options, "--repeat-penalty 1.5").unwrap();
        set(&mut options, "num_predict 9").unwrap();
        let sampler = options.sampler;
        assert_eq!(
            (sampler.temperature, sampler.repetition_penalty, options.max_tokens),
            (0.25, 1.5, Some(9))
        );
    }
}
