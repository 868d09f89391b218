//! Manual pages and shell completions, made from the same definitions as `--help`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_mangen::Man;
use roff::{Roff, roman};

use crate::exit::{Exit, Failure};
use crate::output;

/// Options of `completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// Shell to complete for
    #[arg(value_enum)]
    pub shell: clap_complete::Shell,
}

/// Options of `man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Directory for one page per sub-command
    #[arg(value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

/// Prints a program's script. It is made in memory first: clap_complete panics when stdout is
/// closed early.
pub fn completions(mut program: Command, args: &CompletionsArgs) -> Result<Exit, Failure> {
    let (mut script, name) = (Vec::new(), program.get_name().to_owned());
    clap_complete::generate(args.shell, &mut program, name, &mut script);
    output::print(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Done)
}

/// Prints a program's page, or writes it and one page per sub-command, however deep, to a
/// directory.
pub fn man(program: Command, args: &ManArgs) -> Result<Exit, Failure> {
    let mut command = program.disable_help_subcommand(true);
    command.build();
    match &args.dir {
        Some(dir) => {
            fs::create_dir_all(dir).map_err(|e| Failure::io("create", dir, &e))?;
            write(&command, dir)?;
        }
        None => output::print(&String::from_utf8_lossy(&page(&command)?))?,
    }
    Ok(Exit::Done)
}

fn write(command: &Command, dir: &Path) -> Result<(), Failure> {
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
        write(sub, dir)?;
    }
    let path = dir.join(Man::new(command.clone()).get_filename());
    fs::write(&path, page(command)?).map_err(|e| Failure::io("write", &path, &e))
}

/// One page. What follows the options in `--help` ("Examples:", "Exit codes:") has lines of its
/// own, which clap_mangen would fill into a paragraph.
fn page(command: &Command) -> io::Result<Vec<u8>> {
    let man =
        Man::new(command.clone()).source(format!("homenode {}", env!("CARGO_PKG_VERSION"))).manual("homenode manual");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    let extra = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let mut roff = Roff::new();
    let mut lines = extra.lines();
    let heading = lines.next().unwrap_or_default().trim_end_matches(':').to_uppercase();
    if !heading.is_empty() {
        roff.control("SH", [heading.as_str()]).control("nf", []);
        for line in lines {
            roff.text([roman(line)]);
        }
        roff.control("fi", []);
    }
    roff.to_writer(&mut page)?;
    Ok(page)
}
