//! The imports between the files of the sources: no cycles, and the layers inside a
//! crate. See `rooms` for the crates. Reads the sources; no server.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use syn::visit::{self, Visit};
use syn::{Item, ItemMod, ItemUse, Macro, UseTree, Visibility};

/// The layers inside a module, the lowest first. A file imports only files of its own
/// layer and of lower ones. Files that are in no layer are not restricted.
const LAYERS: [(&str, &[&[&str]]); 3] = [
    (
        "semaphore",
        &[
            &["error"],
            &["queues"],
            &["management"],
            &["session"],
            &["protocol"],
            &["admin", "client"],
        ],
    ),
    (
        "operator",
        &[
            &["error", "events", "fetch", "defaults", "state", "metrics", "concurrency"],
            &["context", "outcome"],
            &["kind"],
            &[
                "quota",
                "names",
                "same_server",
                "kind_context",
                "conflict",
                "status_writer",
                "object_metrics",
            ],
            &["semaphore", "pressure_queue", "reconcile", "cleanup"],
            &["work", "unwatched"],
        ],
    ),
    (
        "prove",
        &[
            &["history"],
            &["wire", "driver"],
            &["check"],
            &["run", "straw"],
            &["steps", "cost", "watch"],
            &["controls"],
            &["report"],
            &["cli"],
        ],
    ),
];

/// The path of a module: `["semaphore", "amqp"]` for that of a crate, `["operator", "work"]` for
/// that of the program.
type Module = Vec<String>;

#[test]
fn no_files_import_each_other() {
    let imports = imports();
    let mut cycles = Vec::new();
    let mut seen = BTreeSet::new();
    for file in imports.keys() {
        let ahead = reach(&imports, file);
        let cycle: Vec<&Module> =
            ahead.iter().filter(|other| reach(&imports, other).contains(file)).collect();
        if cycle.len() > 1 && seen.insert(cycle.clone().into_iter().cloned().collect::<Vec<_>>()) {
            cycles.push(cycle.iter().map(|file| file.join("::")).collect::<Vec<_>>().join(", "));
        }
    }
    assert!(cycles.is_empty(), "{}", cycles.join("\n"));
}

#[test]
fn a_file_imports_only_its_own_layer_and_lower_ones() {
    let mut wrong = Vec::new();
    for (file, imported) in &imports() {
        for other in imported {
            if let (Some(own), Some(its)) = (layer(file), layer(other))
                && file[0] == other[0]
                && its > own
            {
                wrong.push(format!("{} must not import {}", file.join("::"), other.join("::")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn layer(file: &Module) -> Option<usize> {
    let (_, layers) = LAYERS.iter().find(|(module, _)| *module == file[0])?;
    let name = file.get(1)?;
    layers.iter().position(|layer| layer.contains(&name.as_str()))
}

/// Returns the files that are reached from this one by imports.
fn reach(imports: &BTreeMap<Module, BTreeSet<Module>>, from: &Module) -> BTreeSet<Module> {
    let mut found = BTreeSet::new();
    let mut next = vec![from];
    while let Some(file) = next.pop() {
        for other in imports.get(file).into_iter().flatten() {
            if found.insert(other.clone()) {
                next.push(other);
            }
        }
    }
    found
}

/// Returns the files that each file imports, by `use` or by a path in its code. A
/// re-export counts as the file that has the item. Tests inside a file are left out.
fn imports() -> BTreeMap<Module, BTreeSet<Module>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = BTreeMap::new();
    read(&root.join("src"), None, &mut Vec::new(), &mut files);
    for entry in std::fs::read_dir(root.join("crates")).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        read(&entry.path().join("src"), Some(&name), &mut vec![name.clone()], &mut files);
    }
    assert!(files.len() > 100, "{} files", files.len());
    let modules: BTreeSet<Module> = files.keys().cloned().collect();
    let found = |file: &Module, paths: &[Module]| -> BTreeSet<Module> {
        let targets = paths.iter().filter_map(|path| target(path, &modules, &files));
        targets.filter(|target| target != file).collect()
    };
    files.iter().map(|(file, paths)| (file.clone(), found(file, &paths.used))).collect()
}

/// Returns the file that has the item of this absolute path.
fn target(
    path: &[String],
    modules: &BTreeSet<Module>,
    files: &BTreeMap<Module, Paths>,
) -> Option<Module> {
    let module = (1..=path.len()).rev().map(|n| &path[..n]).find(|m| modules.contains(*m))?;
    match path.get(module.len()).and_then(|item| files[module].exported.get(item)) {
        Some(exported) if exported != path => {
            let rest = &path[module.len() + 1..];
            target(&[exported, rest].concat(), modules, files)
        }
        _ => Some(module.to_vec()),
    }
}

/// Reads the files of a folder of a crate, or of the program (`None`).
fn read(
    folder: &Path,
    krate: Option<&str>,
    module: &mut Module,
    files: &mut BTreeMap<Module, Paths>,
) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if name == "tests" {
            continue;
        }
        if path.is_dir() {
            module.push(name);
            read(&path, krate, module, files);
            module.pop();
        } else if path.extension().is_some_and(|extension| extension == "rs")
            && name != "main"
            && (krate.is_some() || name != "lib")
        {
            let mut module = module.clone();
            if name != "mod" && name != "lib" {
                module.push(name);
            }
            let code = syn::parse_file(&std::fs::read_to_string(&path).unwrap()).unwrap();
            let krate = krate.map(ToOwned::to_owned).into_iter().collect();
            let mut paths = Paths { krate, module: module.clone(), ..Paths::default() };
            paths.visit_file(&code);
            files.insert(module, paths);
        }
    }
}

/// Returns the paths of several names in the text of a macro call, which has spaces between its
/// tokens.
fn paths_in(tokens: &str) -> Vec<Module> {
    let mut paths: Vec<Module> = vec![Vec::new()];
    let mut joined = false;
    for token in tokens.split(|c: char| c.is_whitespace() || "()[]{}<>,;&.!".contains(c)) {
        let is_name = token.starts_with(|c: char| c.is_alphabetic() || c == '_');
        match paths.last_mut() {
            _ if token.is_empty() => {}
            Some(_) if token == "::" => joined = true,
            Some(path) if is_name && joined => path.push(token.to_owned()),
            _ => paths.push(vec![token.to_owned()]),
        }
        joined = token == "::" || (joined && token.is_empty());
    }
    paths.retain(|path| path.len() > 1);
    paths
}

/// The absolute paths in a file.
#[derive(Default)]
struct Paths {
    /// The path of its crate: empty for the program.
    krate: Module,
    module: Module,
    children: BTreeSet<String>,
    used: Vec<Module>,
    /// The paths that it exports under these names.
    exported: BTreeMap<String, Module>,
}

impl Paths {
    fn add(&mut self, path: &[String], exported: bool) {
        let Some(path) = self.absolute(path) else { return };
        let is_own = path.starts_with(&self.module);
        if exported && let Some(name) = path.last() {
            self.exported.insert(name.clone(), path.clone());
        }
        // A file does not depend on the children that it only passes on.
        if !(exported && is_own) {
            self.used.push(path);
        }
    }

    fn absolute(&self, path: &[String]) -> Option<Module> {
        let mut module = self.module.clone();
        let mut rest = path;
        match path.first()?.as_str() {
            "crate" => return Some([&self.krate[..], &path[1..]].concat()),
            "self" => rest = &path[1..],
            "super" => {
                while rest.first().is_some_and(|part| part == "super") {
                    module.pop();
                    rest = &rest[1..];
                }
            }
            first if self.children.contains(first) => {}
            first => {
                let other = first.strip_prefix("lockkeeper_")?.to_owned();
                return Some([&[other], &path[1..]].concat());
            }
        }
        Some([&module, rest].concat())
    }

    fn add_tree(&mut self, before: &mut Module, tree: &UseTree, exported: bool) {
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.add_tree(before, &path.tree, exported);
                before.pop();
            }
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.add_tree(before, tree, exported));
            }
            UseTree::Name(name) if name.ident == "self" => self.add(before, exported),
            UseTree::Name(name) => {
                self.add(&[before, &[name.ident.to_string()][..]].concat(), exported);
            }
            UseTree::Rename(name) => {
                self.add(&[before, &[name.ident.to_string()][..]].concat(), exported);
            }
            UseTree::Glob(_) => self.add(before, exported),
        }
    }
}

impl<'a> Visit<'a> for Paths {
    fn visit_file(&mut self, file: &'a syn::File) {
        for item in &file.items {
            if let Item::Mod(module) = item {
                self.children.insert(module.ident.to_string());
            }
        }
        visit::visit_file(self, file);
    }

    fn visit_item_mod(&mut self, module: &'a ItemMod) {
        // Only tests are modules inside a file.
        if module.content.is_none() {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_use(&mut self, item: &'a ItemUse) {
        let exported = !matches!(item.vis, Visibility::Inherited);
        self.add_tree(&mut Vec::new(), &item.tree, exported);
    }

    fn visit_visibility(&mut self, _: &'a Visibility) {}

    fn visit_macro(&mut self, code: &'a Macro) {
        for path in paths_in(&code.tokens.to_string()) {
            self.add(&path, false);
        }
        visit::visit_macro(self, code);
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        if path.segments.len() > 1 {
            let names: Module = path.segments.iter().map(|part| part.ident.to_string()).collect();
            self.add(&names, false);
        }
        visit::visit_path(self, path);
    }
}
