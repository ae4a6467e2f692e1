//! Results of tools in the order of the calls that they answer.
#![forbid(unsafe_code)]

use super::fields::refused;
use super::message::ChatMessage;
use super::template::Role;
use crate::error::{Error, Name, Result};
use crate::sort;
use alloc::collections::BTreeMap;
use alloc::string::String;
use alloc::vec::Vec;

/// Matches results to calls by their ids while a request is read. Templates show no ids: results come in the order of
/// the calls.
#[derive(Debug, Default)]
pub struct ToolResults {
    /// The number of the last call of each id, counted through the request, and whether a result named it.
    ids: BTreeMap<String, (usize, bool)>,
    calls: usize,
    /// The first call of the turn, and whether one of its calls has no id.
    first: usize,
    unnamed: bool,
    /// Indices of the messages that are results in this turn, and the calls they answer.
    found: Vec<(usize, usize)>,
}

impl ToolResults {
    /// Takes the ids of a message's calls, before it is one of `messages` or while it is the last.
    pub fn calls(&mut self, messages: &mut [ChatMessage], ids: impl IntoIterator<Item = Option<String>>) {
        // Some clients make a message of each call.
        let follows = messages.last().is_some_and(|last| last.role == Role::Assistant);
        let mut begins = !follows || !self.found.is_empty();
        for id in ids {
            if core::mem::take(&mut begins) {
                self.sort(messages);
                (self.first, self.unnamed) = (self.calls, false);
            }
            match id.filter(|id| !id.is_empty()) {
                Some(id) => {
                    self.ids.insert(id, (self.calls, false));
                }
                None => self.unnamed = true,
            }
            self.calls += 1;
        }
    }

    /// Takes a result that will be the next of `messages`. `place` and `name` are those of its id.
    ///
    /// # Errors
    /// If no call has the id, a result before named it, or there is no call that it can be the result of.
    pub fn result(
        &mut self,
        messages: &[ChatMessage],
        id: Option<String>,
        place: &str,
        name: &str,
    ) -> Result<()> {
        let id = id.filter(|id| !id.is_empty());
        let unsupported = |id: String, expected| {
            let (key, found) = (Name::new(alloc::format!("{place}.{name}")), Name::new(id));
            Err(error!(Unsupported { key, found, expected }))
        };
        let call = match (id.as_ref().and_then(|id| self.ids.get_mut(id)), id) {
            (Some((_, true)), Some(id)) => return unsupported(id, "the id of a call without a result"),
            (Some((call, answered)), _) => {
                *answered = true;
                *call
            }
            (None, id) => {
                let next = self.first + self.found.len();
                if let Some(id) = id.filter(|_| !self.unnamed && self.calls > 0) {
                    return unsupported(id, "the id of a call before it");
                }
                if next >= self.calls {
                    return Err(refused(place, "is a result of a tool, but no call before it lacks one"));
                }
                next
            }
        };
        self.found.push((messages.len(), call));
        Ok(())
    }

    /// Puts the results of the turn in order.
    pub fn sort(&mut self, messages: &mut [ChatMessage]) {
        let found = core::mem::take(&mut self.found);
        let key = |i: u32| found.get(i as usize).map(|(at, call)| (*call, *at));
        let order = sort::sorted(found.len(), &|a, b| key(a).cmp(&key(b)));
        let mut texts: Vec<String> = Vec::new();
        for (_, at) in order.into_iter().filter_map(key) {
            texts.extend(messages.get_mut(at).map(|message| core::mem::take(&mut message.content)));
        }
        for ((at, _), text) in found.iter().zip(texts) {
            if let Some(message) = messages.get_mut(*at) {
                message.content = text;
            }
        }
    }
}
