//! What the command line changes in an experiment: other numbers of nodes, and points by turns.
//!
//! **Approach.** A change is made in the text of the experiment, so whatever a load has can be
//! swept, and what is kept of earlier runs ([`crate::kept`]) knows it.

use std::str::FromStr;

use command::exit::{Exit, Failure};
use toml::{Table, Value};

/// `--sweep KEY=V1,V2`: each point once for each value of a number of its load.
#[derive(Clone, Debug)]
pub struct Sweep {
    key: String,
    values: Vec<Value>,
}

impl FromStr for Sweep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, values) = text.split_once('=').ok_or("not KEY=VALUE,VALUE")?;
        let number = |value: &str| {
            let integer = value.parse().map(Value::Integer);
            integer.or_else(|_| value.parse().map(Value::Float)).map_err(|_| format!("{value} is no number"))
        };
        let values = values.split(',').map(number).collect::<Result<_, _>>()?;
        Ok(Self { key: key.to_owned(), values })
    }
}

/// The text of an experiment after the changes.
pub fn changed(text: &str, nodes: Option<u32>, sweeps: &[Sweep]) -> Result<String, Failure> {
    let mut all: Table = text.parse().map_err(|error| Failure::from_error(Exit::Usage, "no experiment", &error))?;
    if let (Some(nodes), Some(machine)) = (nodes, all.get_mut("machine").and_then(Value::as_table_mut)) {
        machine.insert("nodes".to_owned(), Value::Integer(nodes.into()));
    }
    for sweep in sweeps {
        let Some(Value::Array(points)) = all.remove("point") else { continue };
        let mut swept = Vec::new();
        for point in points {
            for value in &sweep.values {
                swept.push(set(point.clone(), &sweep.key, value)?);
            }
        }
        all.insert("point".to_owned(), Value::Array(swept));
        // An effect of single points is stated for those of the paper.
        if let Some(Value::Array(effects)) = all.get_mut("effect") {
            effects.retain(|effect| effect.get("points").is_none());
        }
    }
    Ok(all.to_string())
}

/// The point with this number in its loads.
fn set(mut point: Value, key: &str, value: &Value) -> Result<Value, Failure> {
    let mut found = false;
    if let Value::Table(point) = &mut point {
        let loads = point.iter_mut().filter(|(name, _)| matches!(name.as_str(), "load" | "loads"));
        for load in loads.flat_map(|(_, load)| match load {
            Value::Array(all) => all.iter_mut().collect(),
            one => vec![one],
        }) {
            if let Some(known) = load.as_table_mut().and_then(|load| load.get_mut(key)) {
                *known = match (&*known, value) {
                    (Value::Float(_), Value::Integer(whole)) => Value::Float(*whole as f64),
                    _ => value.clone(),
                };
                found = true;
            }
        }
        if let (true, Some(Value::String(name))) = (found, point.get_mut("name")) {
            *name = format!("{name}, {key} {value}");
        }
    }
    match found {
        true => Ok(point),
        false => {
            let why =
                format!("no load of the point {} has it", point.get("name").map_or("", |n| n.as_str().unwrap_or("")));
            Err(Failure::new(Exit::Usage, format!("--sweep {key}"), why))
        }
    }
}
