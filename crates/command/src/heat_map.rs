//! A heat map of mapped file data, as `homenode hot` hands it to the program that draws it.

use serde::{Deserialize, Serialize};
use topology::NodeId;

/// Cells of a band: as many pixels as its picture has. A multiple of the widths that terminals get.
pub const CELLS: usize = 1440;

/// Most bands that are drawn: a picture of more is higher than viewers show.
pub const MOST: usize = 32;

/// A picture.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HeatMap {
    /// Line above it.
    pub title: String,
    /// One for each mapping.
    pub bands: Vec<Band>,
}

/// A mapping.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Band {
    /// Its file and size.
    pub name: String,
    /// [`CELLS`] cells: the node of most of a cell's bytes, and the share of samples in which they
    /// were accessed; `None` where nothing is mapped.
    pub cells: Vec<Option<(NodeId, f64)>>,
}
