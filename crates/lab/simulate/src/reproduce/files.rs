//! Writes the results: all files, or none of them.

use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::canvas::PlotError;
use super::{Figure, Trials, csv, overview, plot, report};

/// Why the results could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// A file or directory.
    #[error("cannot write {}", path.display())]
    Io {
        /// Its path.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// A plot.
    #[error(transparent)]
    Plot(#[from] PlotError),
    /// The table.
    #[error("cannot put results.csv together")]
    Csv(#[from] ::csv::Error),
}

/// Checks that files can be written to a directory, before the experiments run.
///
/// # Errors
///
/// [`WriteError::Io`] when it cannot be created or written to.
pub fn prepare(dir: &Path) -> Result<(), WriteError> {
    std::fs::create_dir_all(dir).map_err(|source| WriteError::Io { path: dir.to_owned(), source })?;
    temporary(dir).map(drop)
}

/// Writes `report.html`, `results.csv`, `overview.png` and a PNG per figure to a directory. Each
/// file is written beside its place first and moved there when all of them are complete, so that a
/// full disk leaves nothing half-written. Returns the paths of the files.
///
/// # Errors
///
/// [`WriteError`]; the directory is then as it was, unless moving itself fails.
pub fn write(dir: &Path, figures: &[Figure], seeds: u64, trials: Option<&Trials>) -> Result<Vec<PathBuf>, WriteError> {
    let plots = figures.iter().map(plot::png).collect::<Result<Vec<_>, PlotError>>()?;
    let overview = overview::png(figures)?;
    let mut files = vec![
        ("report.html".to_owned(), report::html(figures, &overview, &plots, seeds, trials).into_bytes()),
        ("results.csv".to_owned(), csv::csv(figures)?),
    ];
    files.push(("overview.png".to_owned(), overview));
    files.extend(figures.iter().map(Figure::png_name).zip(plots));
    let mut complete = Vec::new();
    for (name, bytes) in files {
        let path = dir.join(name);
        let error = |source| WriteError::Io { path: path.clone(), source };
        let mut file = temporary(dir)?;
        file.write_all(&bytes).and_then(|()| file.as_file().sync_all()).map_err(error)?;
        complete.push((file, path));
    }
    let mut written = Vec::new();
    for (file, path) in complete {
        file.persist(&path).map_err(|e| WriteError::Io { path: path.clone(), source: e.error })?;
        written.push(path);
    }
    Ok(written)
}

fn temporary(dir: &Path) -> Result<NamedTempFile, WriteError> {
    // The umask decides, as for any program.
    let permissions = std::fs::Permissions::from_mode(0o666);
    let mut builder = tempfile::Builder::new();
    let file = builder.prefix(".homenode-").permissions(permissions).tempfile_in(dir);
    file.map_err(|source| WriteError::Io { path: dir.to_owned(), source })
}
