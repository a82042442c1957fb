//! Flux: its Kustomization in its own types.

use lockkeeper_testkit::evaluator::{answer, evaluate, objects};
use serde_json::json;

#[test]
fn the_kustomization_has_only_what_flux_reads_and_its_expressions_parse() {
    let kustomization = objects("flux/kustomization.yaml").remove(0);
    answer(&json!({"do": "decode", "object": kustomization}));
    for (pointer, value) in [
        ("/spec", json!({"healthChecksExpr": []})),
        ("/spec/healthCheckExprs/0", json!({"failed": "status.conditions.exists(c,"})),
    ] {
        let mut wrong = kustomization.clone();
        let place = wrong.pointer_mut(pointer).unwrap().as_object_mut().unwrap();
        place.extend(value.as_object().unwrap().clone());
        let said = evaluate(&[json!({"do": "decode", "object": wrong})]).remove(0);
        assert!(said["error"].is_string(), "{pointer}: {said}");
    }
}
