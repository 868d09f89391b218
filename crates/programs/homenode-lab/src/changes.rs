//! What the command line changes in an experiment: other numbers of nodes, and points by turns.
//!
//! **Approach.** A change is made in the text of the experiment, so each number that a load
//! names can be swept. The effects go: the papers state them for their own loads and machines.

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
    }
    all.remove("effect");
    Ok(all.to_string())
}

/// Puts a number in the place of each that has this name, in a load or a program of it; whether
/// there was one.
fn put(load: &mut Value, key: &str, value: &Value) -> bool {
    let mut found = false;
    match load {
        Value::Array(all) => all.iter_mut().for_each(|one| found |= put(one, key, value)),
        Value::Table(load) => load.iter_mut().for_each(|(name, known)| {
            let new = match (&*known, value) {
                _ if name != key => None,
                (Value::Float(_), Value::Integer(whole)) => Some(Value::Float(*whole as f64)),
                (Value::Float(_) | Value::Integer(_), _) => Some(value.clone()),
                _ => None,
            };
            found |= new.is_some() || put(known, key, value);
            if let Some(new) = new {
                *known = new;
            }
        }),
        _ => {}
    }
    found
}

/// The point with this number in its loads.
fn set(mut point: Value, key: &str, value: &Value) -> Result<Value, Failure> {
    let mut found = false;
    if let Value::Table(point) = &mut point {
        let loads = point.iter_mut().filter(|(name, _)| matches!(name.as_str(), "load" | "loads"));
        loads.for_each(|(_, load)| found |= put(load, key, value));
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
