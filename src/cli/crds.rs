//! `lockkeeper crds`: prints the resource definitions as YAML.

use std::path::PathBuf;

use kube::ResourceExt;
use lockkeeper_api::all_crds;

use super::failure::Failure;
use super::output;

/// Arguments of `lockkeeper crds`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Write one file per kind to this directory instead of printing
    #[arg(long, value_name = "DIR")]
    output_dir: Option<PathBuf>,
}

pub(super) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut all = String::new();
    for crd in all_crds() {
        let yaml = serde_yaml::to_string(&crd)
            .map_err(|error| Failure::new(Failure::CANT_CREATE, error.to_string()))?;
        match &arguments.output_dir {
            None => all.extend(["---\n", &yaml]),
            Some(directory) => {
                let file = directory.join(format!("{}.yaml", crd.spec.names.plural));
                let text = format!(
                    "# Generated from crates/api by `make generate`; edit there.\n---\n{yaml}"
                );
                std::fs::write(&file, text).map_err(|error| {
                    let name = crd.name_any();
                    let message = format!("could not write {name} to {}: {error}", file.display());
                    Failure::new(Failure::CANT_CREATE, message)
                })?;
            }
        }
    }
    output::write(&all)
}
