//! Which file of a crate uses what another one defines, and the circles in it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree, Visibility};

use crate::command::Result;

/// `file -> used file -> names`.
type Uses = BTreeMap<PathBuf, BTreeMap<PathBuf, BTreeSet<String>>>;

/// What a name in a module stands for.
enum Meaning {
    /// Defined in the module itself.
    Item,
    Module,
    /// Imported, by this path.
    Import(Vec<String>),
}

struct Module {
    file: PathBuf,
    names: HashMap<String, Meaning>,
    /// The paths of `use path::*`.
    globs: Vec<Vec<String>>,
}

/// A crate's modules by their paths; the root is the empty path. Modules of tests are left out.
#[derive(Default)]
struct Crate {
    modules: HashMap<Vec<String>, Module>,
    /// Paths that the code writes, each with the module it is in. Re-exports are not among them: they say where a name can be
    /// found, not that the file needs it.
    written: Vec<(Vec<String>, Vec<String>)>,
}

/// Modules, and the paths that were followed from there.
type Followed = HashSet<(Vec<String>, Vec<String>)>;

enum Place<'c> {
    Module(Vec<String>),
    /// An item, defined in this file.
    Item(&'c Path),
}

/// Every circle of files that use each other, of the crate whose root file is `root`: one line for each pair of files in it.
pub(crate) fn circles(root: &Path) -> Result<Vec<String>> {
    let mut parsed = Crate::default();
    parsed.read(Vec::new(), root, root.parent().unwrap_or(root))?;
    let uses = parsed.uses();
    let reached: HashMap<&PathBuf, BTreeSet<&PathBuf>> =
        uses.keys().map(|from| (from, reach(&uses, from))).collect();
    let mut lines = Vec::new();
    for (from, used) in &uses {
        for (to, names) in used {
            if reached.get(to).is_some_and(|back| back.contains(from)) {
                let names = names.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
                lines.push(format!(
                    "{} uses {} ({names}), which uses it in turn",
                    from.display(),
                    to.display()
                ));
            }
        }
    }
    Ok(lines)
}

/// The files that `from` uses, directly or through others.
fn reach<'u>(uses: &'u Uses, from: &'u PathBuf) -> BTreeSet<&'u PathBuf> {
    let mut seen = BTreeSet::new();
    let mut waiting = vec![from];
    while let Some(file) = waiting.pop() {
        for to in uses.get(file).into_iter().flat_map(BTreeMap::keys) {
            if seen.insert(to) {
                waiting.push(to);
            }
        }
    }
    seen
}

impl Crate {
    /// Reads the module at `path` from `file`; the files of its modules are in `dir`.
    fn read(&mut self, path: Vec<String>, file: &Path, dir: &Path) -> Result<()> {
        let text = fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
        let parsed = syn::parse_file(&text).map_err(|e| format!("{}: {e}", file.display()))?;
        self.module(path, parsed.items, file, dir)
    }

    fn module(&mut self, path: Vec<String>, items: Vec<Item>, file: &Path, dir: &Path) -> Result<()> {
        let mut module = Module { file: file.to_path_buf(), names: HashMap::new(), globs: Vec::new() };
        for item in items {
            if is_test(attributes(&item)) {
                continue;
            }
            match item {
                Item::Mod(inner) => {
                    let name = inner.ident.to_string();
                    let below = [path.clone(), vec![name.clone()]].concat();
                    match inner.content {
                        Some((_, items)) => self.module(below, items, file, &dir.join(&name))?,
                        None => {
                            let (flat, folder) =
                                (dir.join(format!("{name}.rs")), dir.join(&name).join("mod.rs"));
                            let other = path_attribute(&inner.attrs)
                                .map(|path| file.parent().unwrap_or(dir).join(path));
                            let file = other.unwrap_or(if flat.is_file() { flat } else { folder });
                            // Without such a file, `cfg_attr` chooses one by a feature.
                            if file.is_file() {
                                self.read(below, &file, &dir.join(&name))?;
                            }
                        }
                    }
                    module.names.insert(name, Meaning::Module);
                }
                Item::Use(import) => {
                    let mut leaves = Vec::new();
                    flatten(&import.tree, &mut Vec::new(), &mut leaves);
                    let private = matches!(import.vis, Visibility::Inherited);
                    for (name, target) in leaves {
                        if private {
                            self.written.push((path.clone(), target.clone()));
                        }
                        match name {
                            Some(name) => drop(module.names.insert(name, Meaning::Import(target))),
                            None => module.globs.push(target),
                        }
                    }
                }
                item => {
                    if let Some(name) = defined(&item) {
                        module.names.insert(name, Meaning::Item);
                    }
                    Paths { module: &path, written: &mut self.written }.visit_item(&item);
                }
            }
        }
        self.modules.insert(path, module);
        Ok(())
    }

    /// Follows `path`, as written in the module `from`. `None` if it leads out of the crate. `seen` are the paths followed on the
    /// way here: imports may name each other.
    fn find(&self, from: &[String], path: &[String], seen: &mut Followed) -> Option<Place<'_>> {
        if !seen.insert((from.to_vec(), path.to_vec())) {
            return None;
        }
        let mut at = from.to_vec();
        let mut rest = path;
        while let Some((first, others)) = rest.split_first() {
            match first.as_str() {
                "crate" => at.clear(),
                "super" => drop(at.pop()?),
                "self" => {}
                _ => break,
            }
            rest = others;
        }
        for (done, name) in rest.iter().enumerate() {
            let module = self.modules.get(&at)?;
            match module.names.get(name) {
                Some(Meaning::Item) => return Some(Place::Item(&module.file)),
                Some(Meaning::Module) => at.push(name.clone()),
                Some(Meaning::Import(target)) => match self.find(&at, target, seen)? {
                    Place::Module(path) => at = path,
                    item => return Some(item),
                },
                None => {
                    let mut all = module.globs.iter();
                    return all.find_map(|glob| match self.find(&at, glob, seen)? {
                        Place::Module(there) => self.find(&there, &rest[done..], seen),
                        item => Some(item),
                    });
                }
            }
        }
        Some(Place::Module(at))
    }

    fn uses(&self) -> Uses {
        let mut uses = Uses::new();
        for (module, path) in &self.written {
            let Some(Place::Item(to)) = self.find(module, path, &mut Followed::new()) else { continue };
            let Some(from) = self.modules.get(module).map(|module| &module.file) else { continue };
            if from != to {
                let name = path.last().cloned().unwrap_or_default();
                uses.entry(from.clone()).or_default().entry(to.to_path_buf()).or_default().insert(name);
            }
        }
        uses
    }
}

/// Collects the paths in expressions, types and patterns.
struct Paths<'p> {
    module: &'p [String],
    written: &'p mut Vec<(Vec<String>, Vec<String>)>,
}

impl<'ast> Visit<'ast> for Paths<'_> {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        let path_of = |path: &syn::Path| path.segments.iter().map(|s| s.ident.to_string()).collect();
        self.written.push((self.module.to_vec(), path_of(path)));
        visit::visit_path(self, path);
    }

    fn visit_item_use(&mut self, import: &'ast syn::ItemUse) {
        let mut leaves = Vec::new();
        flatten(&import.tree, &mut Vec::new(), &mut leaves);
        self.written.extend(leaves.into_iter().map(|(_, path)| (self.module.to_vec(), path)));
    }
}

/// The names that a `use` brings in, each with its path; `None` stands for all names.
fn flatten(tree: &UseTree, path: &mut Vec<String>, leaves: &mut Vec<(Option<String>, Vec<String>)>) {
    let before = path.len();
    match tree {
        UseTree::Path(inner) => {
            path.push(inner.ident.to_string());
            flatten(&inner.tree, path, leaves);
        }
        UseTree::Group(group) => group.items.iter().for_each(|tree| flatten(tree, path, leaves)),
        UseTree::Glob(_) => leaves.push((None, path.clone())),
        UseTree::Name(inner) => {
            let own = inner.ident == "self";
            if !own {
                path.push(inner.ident.to_string());
            }
            leaves.push((path.last().cloned(), path.clone()));
        }
        UseTree::Rename(inner) => {
            if inner.ident != "self" {
                path.push(inner.ident.to_string());
            }
            leaves.push((Some(inner.rename.to_string()), path.clone()));
        }
    }
    path.truncate(before);
}

fn defined(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Whether an item is compiled for tests only.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().filter(|a| a.path().is_ident("cfg")).any(|a| {
        let list = a.meta.require_list().map(|list| list.tokens.to_string()).unwrap_or_default();
        list == "test" || list.replace(' ', "").starts_with("all(test")
    })
}

/// The file of `#[path = "file"] mod name;`.
fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    let value = &attributes.iter().find(|a| a.path().is_ident("path"))?.meta.require_name_value().ok()?.value;
    match value {
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(file), .. }) => Some(file.value()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_is_found_through_re_exports_and_names_both_files() {
        let dir = std::env::temp_dir().join(format!("shohin-imports-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let write = |name: &str, text: &str| fs::write(dir.join(name), text).unwrap();
        write("lib.rs", "mod a; mod b; mod c; pub use b::LEAST; #[cfg(test)] mod missing;");
        write("a.rs", "use crate::LEAST; pub fn f() -> u32 { LEAST }");
        write("b.rs", "pub const LEAST: u32 = 1; pub fn g() -> u32 { super::a::f() }");
        write("c.rs", "use super::{a, b}; pub fn h() -> u32 { a::f() + b::g() }");
        let found = circles(&dir.join("lib.rs")).unwrap();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("a.rs uses") && found[0].contains("(LEAST)"), "{found:?}");
        assert!(found[1].contains("b.rs uses") && found[1].contains("(f)"), "{found:?}");
        write("b.rs", "pub const LEAST: u32 = 1; pub fn g() -> u32 { LEAST }");
        assert!(circles(&dir.join("lib.rs")).unwrap().is_empty());
        fs::remove_dir_all(&dir).unwrap();
    }
}
