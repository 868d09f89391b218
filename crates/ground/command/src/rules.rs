//! `[[service]]` of `homenode.toml` and `conf.d/*.toml`: which services are ignored, observed, or
//! moved by which policy.
//!
//! **Problem.** Root says what may be moved, service by service, in files that packages and people
//! add; a policy's settings there are those of its own section but for what the rule changes.
//!
//! **Approach.** Each entry is a [`Service`]: what it matches, and what is done. Entries of
//! `conf.d`, by file name, come after those of the main file; the first that matches applies
//! ([`placement::rules`]).
//!
//! **Limits.** Programs that decide (`exec:`, `unix:`) cannot stand in a rule. Names of users are
//! looked up when the file is read.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use placement::delegated;
use placement::rules::{Does, Of, Rule};
use serde::Deserialize;
use serde::de::{self, DeserializeOwned, Deserializer, SeqAccess, Visitor};

use crate::exit::Failure;
use crate::source::Source;

/// What `policy` says of services that are not moved.
pub const IGNORE: &str = "ignore";
const OBSERVE: &str = "observe";

/// `[delegate]`: what owners of control groups may choose for them.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Delegate {
    #[serde(deserialize_with = "policies")]
    policies: Vec<String>,
    /// Bytes that moves of each policy may copy in 24 hours, for all groups together.
    #[serde(deserialize_with = "topology::units::bytes_limit")]
    bytes_per_day: f64,
}

impl Delegate {
    /// A rule for each policy that may be chosen, with the settings of the file with this text.
    pub(crate) fn services(&self, main: &str) -> Result<Vec<Service>, String> {
        let main = table(main)?;
        let service = |policy: &String| {
            let text = format!("name = \"{}\"\npolicy = \"{policy}\"", delegated::rule(policy));
            let mut service: Service = toml::from_str(&text).map_err(|error| error.message().to_owned())?;
            service.bytes_per_day = self.bytes_per_day;
            service.chosen = Some(policy.as_str().into());
            service.settle(&main, &toml::Table::new())?;
            Ok(service)
        };
        self.policies.iter().map(service).collect()
    }
}

/// The sections that a rule may have of its own.
const SECTIONS: [&str; 5] = ["nthread", "dragonfly", "npolicy", "arc", "promote"];

/// One entry of `[[service]]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// What output calls the rule; its first pattern if absent.
    name: Option<String>,
    #[serde(default)]
    unit: List<Glob>,
    #[serde(default)]
    group: List<Glob>,
    #[serde(default)]
    pod: List<Glob>,
    #[serde(default)]
    container: List<Glob>,
    #[serde(default)]
    command: List<Glob>,
    #[serde(default)]
    user: List<User>,
    #[serde(deserialize_with = "policy")]
    policy: String,
    /// Bytes that moves for it may copy in 24 hours.
    #[serde(default = "no_limit", deserialize_with = "topology::units::bytes_limit")]
    pub bytes_per_day: f64,
    nthread: Option<placement::nthread::Settings>,
    dragonfly: Option<placement::dragonfly::Settings>,
    npolicy: Option<placement::npolicy::Settings>,
    arc: Option<placement::cache_affinity::Settings>,
    promote: Option<placement::promote::Settings>,
    /// It is for those whose owner has chosen this policy.
    #[serde(skip)]
    chosen: Option<Arc<str>>,
    /// The settings of its policy: those of the file's sections with its own.
    #[serde(skip)]
    pub settings: placement::Settings,
}

fn no_limit() -> f64 {
    f64::INFINITY
}

impl Service {
    /// The rule as processes are matched with it.
    pub fn rule(&self) -> Rule {
        let globs = |list: &List<Glob>| list.0.iter().map(|glob| glob.0.clone()).collect();
        let of = Of {
            units: globs(&self.unit),
            groups: globs(&self.group),
            pods: globs(&self.pod),
            containers: globs(&self.container),
            commands: globs(&self.command),
            users: self.user.0.iter().map(|user| user.0).collect(),
            processes: Vec::new(),
            chosen: self.chosen.clone(),
        };
        let does = match self.policy.as_str() {
            IGNORE => Does::Ignore,
            OBSERVE => Does::Observe,
            _ => Does::Move,
        };
        Rule { name: self.name(), of, does }
    }

    pub fn name(&self) -> Arc<str> {
        let lists = [&self.unit, &self.pod, &self.container, &self.group, &self.command];
        let first = lists.into_iter().flat_map(|list| list.0.first()).map(|glob| glob.0.as_str()).next();
        let user = || self.user.0.first().map_or("everything".to_owned(), |user| format!("user {}", user.0));
        self.name.as_deref().or(first).map_or_else(|| user().into(), Arc::from)
    }

    /// `ignore`, `observe` or the policy.
    pub fn says(&self) -> &str {
        &self.policy
    }

    /// The policy that decides, where one does.
    pub fn policy(&self) -> Option<&str> {
        Some(self.policy.as_str()).filter(|policy| ![IGNORE, OBSERVE].contains(policy))
    }

    /// Refuses what no process can match.
    fn never(&self) -> Result<(), String> {
        let any = |list: &List<Glob>, is: &dyn Fn(&str) -> bool| {
            list.0.iter().map(|glob| glob.0.as_str()).find(|text| is(text)).map(str::to_owned)
        };
        let open = |text: &str| text.contains(['*', '?', '[']);
        let ours = delegated::rule("");
        if self.name().starts_with(&ours) {
            return Err(format!("names that begin with {ours}are those of [delegate]"));
        }
        let whys = [
            (any(&self.group, &|text| !text.starts_with(['/', '*', '?', '['])), "a control group begins with /"),
            (any(&self.pod, &|text| !text.contains('/')), "a pod is NAMESPACE/NAME"),
            (any(&self.command, &|text| text.len() > 15 && !open(text)), "Linux keeps 15 bytes of a command's name"),
        ];
        let never = whys.into_iter().find_map(|(text, why)| text.map(|text| format!("{text} matches nothing: {why}")));
        never.map_or(Ok(()), Err)
    }

    fn names_nothing(&self) -> bool {
        self.rule().of.is_empty()
    }

    /// Refuses what cannot be meant, and takes the settings.
    fn check(&mut self, main: &toml::Table, own: &toml::Table) -> Result<(), String> {
        if self.names_nothing() {
            return Err("it names no unit, group, pod, container, user or command".to_owned());
        }
        let unused = SECTIONS.into_iter().find(|section| own.contains_key(*section) && self.policy().is_none());
        if let Some(section) = unused {
            return Err(format!("{section} is set, and policy {} decides nothing", self.policy));
        }
        if self.bytes_per_day.is_finite() && self.policy().is_none() {
            return Err(format!("bytes_per_day is set, and policy {} copies nothing", self.policy));
        }
        self.never()?;
        self.settle(main, own)
    }

    /// Takes the settings of a file's sections, and over them those of this entry, which is `own`.
    fn settle(&mut self, file: &toml::Table, own: &toml::Table) -> Result<(), String> {
        fn merged<T: DeserializeOwned>(file: &toml::Table, own: &toml::Table, section: &str) -> Result<T, String> {
            let of = |from: &toml::Table| from.get(section).and_then(toml::Value::as_table).cloned();
            let mut both = of(file).unwrap_or_default();
            both.extend(of(own).unwrap_or_default());
            both.try_into().map_err(|error| format!("{section}: {}", error.message()))
        }
        let settings = &mut self.settings;
        settings.nthread = merged(file, own, "nthread")?;
        settings.dragonfly = merged(file, own, "dragonfly")?;
        settings.npolicy = merged(file, own, "npolicy")?;
        settings.arc = merged(file, own, "arc")?;
        settings.promote = merged(file, own, "promote")?;
        settings.auto.min_bytes = settings.nthread.min_bytes;
        Ok(())
    }
}

fn table(text: &str) -> Result<toml::Table, String> {
    toml::from_str(text).map_err(|error| error.message().to_owned())
}

/// Completes the entries of a file; `main` is the text whose sections hold for all.
pub(crate) fn settle(services: &mut [Service], file: &Source, main: &str) -> Result<(), Failure> {
    let tables = table(&file.text).and_then(|own| Ok((own, table(main)?)));
    let (own, main) = tables.map_err(|why| file.refuse("", why))?;
    let entries = own.get("service").and_then(toml::Value::as_array).into_iter().flatten();
    for (at, (service, own)) in services.iter_mut().zip(entries.filter_map(toml::Value::as_table)).enumerate() {
        let name = service.name();
        service
            .check(&main, own)
            .map_err(|why| file.refuse(&format!("service.{at}"), format!("service {name}: {why}")))?;
    }
    Ok(())
}

/// Gives each rule a name of its own.
pub(crate) fn number(services: &mut [Service]) {
    let mut taken: Vec<Arc<str>> = Vec::new();
    for service in services {
        let name = service.name();
        let numbered = |n: usize| if n == 1 { name.clone() } else { format!("{name} ({n})").into() };
        let own = (1..).map(numbered).find(|name| !taken.contains(name)).unwrap_or(name.clone());
        taken.push(own.clone());
        service.name = Some(own.to_string());
    }
}

/// A file of `conf.d`: rules alone.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Drop {
    #[serde(default)]
    pub service: Vec<Service>,
}

/// The files of `conf.d` beside a configuration file, by name.
pub(crate) fn drops(config: &Path) -> Result<Vec<PathBuf>, Failure> {
    let dir = config.with_file_name("conf.d");
    let entries = match std::fs::read_dir(&dir) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|e| Failure::io("read", &dir, &e))?,
    };
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>();
    let mut paths = paths.map_err(|e| Failure::io("read", &dir, &e))?;
    paths.retain(|path| is_drop(path));
    paths.sort();
    Ok(paths)
}

/// Whether a file of a `conf.d` is read, by its name. An editor's lock begins with a dot.
pub fn is_drop(path: &Path) -> bool {
    let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    path.extension().is_some_and(|extension| extension == "toml") && !hidden
}

/// One value or a list of them.
#[derive(Clone, Debug, PartialEq)]
struct List<T>(Vec<T>);

impl<T> Default for List<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

/// A value that is text, or a number.
trait Word: Sized {
    const KIND: &str;
    fn word(text: &str) -> Result<Self, String>;
}

impl<'de, T: Word> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Words<T>(std::marker::PhantomData<T>);
        impl<'de, T: Word> Visitor<'de> for Words<T> {
            type Value = Vec<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}, or a list of such", T::KIND)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Vec<T>, E> {
                Ok(vec![T::word(text).map_err(E::custom)?])
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Vec<T>, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
                let mut all = Vec::new();
                while let Some(List(mut one)) = list.next_element::<List<T>>()? {
                    all.append(&mut one);
                }
                Ok(all)
            }
        }
        from.deserialize_any(Words(std::marker::PhantomData)).map(Self)
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Glob(placement::rules::Pattern);

impl Word for Glob {
    const KIND: &str = "a name, in which * and ? stand for others";

    fn word(text: &str) -> Result<Self, String> {
        pattern(text).map(Self)
    }
}

/// A pattern of a rule, from what a person wrote.
///
/// # Errors
///
/// Why it is none.
pub fn pattern(text: &str) -> Result<placement::rules::Pattern, String> {
    if text.is_empty() {
        return Err("an empty name".to_owned());
    }
    placement::rules::Pattern::new(text).map_err(|error| format!("{text} is no pattern: {}", error.msg))
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct User(u32);

impl Word for User {
    const KIND: &str = "the name or the id of a user";

    fn word(text: &str) -> Result<Self, String> {
        if let Ok(uid) = text.parse() {
            return Ok(Self(uid));
        }
        match nix::unistd::User::from_name(text) {
            Ok(Some(user)) => Ok(Self(user.uid.as_raw())),
            Ok(None) => Err(format!("no user is called {text}")),
            Err(error) => Err(format!("user {text}: {}", error.desc())),
        }
    }
}

fn policies<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    let names = Vec::<String>::deserialize(from)?;
    let is = |name: &str| placement::POLICIES.iter().any(|(known, _)| *known == name);
    match names.iter().find(|name| !is(name)) {
        Some(name) => Err(de::Error::custom(format!("no policy is called {name}"))),
        None => Ok(names),
    }
}

/// `ignore`, `observe` or the name of a policy.
fn policy<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    let name = String::deserialize(from)?;
    let policies = || placement::POLICIES.iter().map(|(name, _)| *name);
    match [IGNORE, OBSERVE].into_iter().chain(policies()).any(|known| known == name) {
        true => Ok(name),
        false => {
            let known: Vec<&str> = [IGNORE, OBSERVE].into_iter().chain(policies()).collect();
            Err(de::Error::custom(format!("policy {name}: it is none of {}", known.join(", "))))
        }
    }
}
