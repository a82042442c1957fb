//! x
fn main(){ for c in lockkeeper::api::all_crds() { println!("{}", serde_yaml::to_string(&c).unwrap()); } }
