//! Installation without helm: one file for kubectl, a base for kustomize, and the input
//! files of the image.

use std::path::{Path, PathBuf};
use std::process::Command;

use lockkeeper_testkit::environment::random;
use serde_json::Value;

use crate::chart::{DRY_RUN, documents, given, kubectl, of_kind};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap()
}

fn kustomized(folder: &Path) -> Vec<Value> {
    documents(&given(Command::new("kubectl").arg("kustomize").arg(folder), "").unwrap())
}

/// Returns kind and name, which identify the objects of an installation.
fn names(objects: &[Value]) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let mut names: Vec<_> =
        objects.iter().map(|o| (text(&o["kind"]), text(&o["metadata"]["name"]))).collect();
    names.sort();
    names
}

#[test]
fn install_yaml_is_what_the_chart_gives_now_and_is_accepted() {
    let committed = read("charts/install/install.yaml");
    let now = given(&mut Command::new(root().join("dev/chart-install")), "").unwrap();
    assert!(committed == now, "charts/install/install.yaml is stale: run `make generate`");
    let objects = documents(&committed);
    assert_eq!(of_kind(&objects, "Namespace")["metadata"]["name"], "lockkeeper-system");
    let dry_run: Vec<&str> =
        DRY_RUN.into_iter().chain(["--force-conflicts", "--validate=strict"]).collect();
    let said = kubectl(&dry_run, Some(&objects)).unwrap();
    assert!(!said.contains("Warning"), "{said}");
    assert!(!committed.to_lowercase().contains("helm"), "it is applied without helm");
}

/// A directory that is removed when dropped.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn the_base_for_kustomize_is_the_same_and_can_be_changed() {
    let base = root().join("charts/install");
    let objects = documents(&read("charts/install/install.yaml"));
    assert_eq!(names(&kustomized(&base)), names(&objects));

    let folder = Folder(Path::new(env!("CARGO_TARGET_TMPDIR")).join(random()));
    std::fs::create_dir_all(&folder.0).unwrap();
    // kustomize only accepts a base by its relative path: up to the root, and down again.
    let place = folder.0.canonicalize().unwrap();
    let up = "../".repeat(place.components().count() - 1);
    let base = format!("{up}{}", base.display().to_string().trim_start_matches('/'));
    let overlay = format!(
        "resources: [{base}]\nnamespace: platform\n\
         images: [{{name: lockkeeper, newName: images.example.com/lockkeeper, newTag: \"9\"}}]\n\
         replicas: [{{name: lockkeeper, count: 2}}]\n"
    );
    std::fs::write(folder.0.join("kustomization.yaml"), overlay).unwrap();
    let changed = kustomized(&folder.0);
    let deployment = of_kind(&changed, "Deployment");
    assert_eq!(deployment["metadata"]["namespace"], "platform");
    assert_eq!(deployment["spec"]["replicas"], 2);
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["image"], "images.example.com/lockkeeper:9");
    for binding in ["ClusterRoleBinding", "RoleBinding"] {
        assert_eq!(of_kind(&changed, binding)["subjects"][0]["namespace"], "platform");
    }
}

/// No image builder is available here. Checks the possible errors before a build starts.
#[test]
fn the_image_is_built_from_existing_files_and_runs_without_root() {
    let text = read("dev/Dockerfile");
    let steps: Vec<&str> =
        text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect();
    let ignored = read("dev/Dockerfile.dockerignore");
    let mut copied = 0;
    for sources in steps.iter().filter_map(|step| step.strip_prefix("COPY ")) {
        if sources.starts_with("--from=build ") {
            continue;
        }
        let mut sources: Vec<&str> = sources.split_whitespace().collect();
        sources.pop();
        for source in sources {
            assert!(root().join(source).exists(), "{source} does not exist");
            assert!(ignored.lines().any(|line| line == format!("!{source}")), "{source}");
            copied += 1;
        }
    }
    assert_eq!(copied, ignored.lines().filter(|line| line.starts_with('!')).count());
    let manifest = read("Cargo.toml");
    assert!(text.contains("--bin lockkeeper") && manifest.contains("name = \"lockkeeper\""));
    // The program's file, and every member of the workspace, must be in a copied folder.
    // Otherwise cargo rejects the manifest. It does not look for the files of tests.
    let sections = manifest.split("\n[").filter(|section| section.starts_with("[bin]]"));
    let targets =
        sections.filter_map(|section| section.split_once("\npath = \"")).map(|(_, path)| path);
    let members = manifest.lines().find_map(|line| line.strip_prefix("members = [\"")).unwrap();
    for line in targets.chain(members.trim_end_matches("\"]").split("\", \"")) {
        let folder = line.split('/').next().unwrap();
        assert!(steps.contains(&format!("COPY {folder} {folder}").as_str()), "{line}");
    }

    let last = steps.iter().rposition(|step| step.starts_with("FROM ")).unwrap();
    assert_eq!(steps[last], "FROM scratch");
    // With runAsNonRoot the kubelet rejects a user name, because it cannot resolve it.
    assert!(steps[last..].contains(&"USER 65532:65532"));
    assert!(steps[last..].contains(&"ENTRYPOINT [\"/lockkeeper\"]"));
}
