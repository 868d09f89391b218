//! Causes of misses, where they are known.
//!
//! **Approach.** A table, by figure and by series or ordering. Each cause has a tag and a sentence.
//! A miss that is not in the table is unknown, and the report says so. A test looks for entries
//! that no miss needs any more.
//!
//! **Limits.** Causes are argued: nobody here has the papers' machines.

use crate::papers::Paper;

/// Kind of cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Tag {
    /// The paper says two things that exclude each other.
    Contradiction,
    /// The paper does not state what decides it.
    NotStated,
    /// The model does not have what decides it.
    Lacking,
    /// Nobody knows.
    Unknown,
}

impl Tag {
    /// Words for the report.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Contradiction => "paper contradicts itself",
            Self::NotStated => "not stated",
            Self::Lacking => "model lacks it",
            Self::Unknown => "unknown",
        }
    }
}

/// One cause.
pub(super) struct Cause {
    pub tag: Tag,
    pub why: &'static str,
    /// Misses that it explains: paper, figure, series (or `ordering`; empty: every one), beginning
    /// of the point or the statement.
    of: &'static [(Paper, &'static str, &'static str, &'static str)],
}

/// Every known cause. The first that fits a miss is its cause.
pub(super) static CAUSES: &[Cause] = &[
    Cause {
        tag: Tag::Contradiction,
        why: "By Fig. 9 the weighted bandwidth is the same for all mixes, so that NThread's rule sees contention in all of them or in none. Fig. 5(a) has it for rw80 and rw60 only; here it grows with the writes.",
        of: &[
            (Paper::NThread, "5a", "ordering", "NThread beats NThread_rl for rw80"),
            (Paper::NThread, "5a", "ordering", "NThread is similar to NThread_rl for rw"),
            (Paper::NThread, "Table II", "ordering", "reducing NVMM contention helps 4 threads at rw80"),
        ],
    },
    Cause {
        tag: Tag::Contradiction,
        why: "50 files of 2 GB are 107 GB. At the paper's own speed (10,000 files of 160 KB in 3.5 s) moving them takes 230 s of a run of 60 s, and one file takes longer than Eq. 9 allows in a window of 6 s.",
        of: &[
            (Paper::Dragonfly, "6a", "Dragonfly / NThread", "videoserver"),
            (Paper::Dragonfly, "6a", "Dragonfly / NThread", "average"),
            (Paper::Dragonfly, "6a", "ordering", "Dragonfly beats NThread for videoserver"),
            (Paper::Dragonfly, "6a", "ordering", "Dragonfly gains more for videoserver"),
        ],
    },
    Cause {
        tag: Tag::NotStated,
        why: "The text names neither the mixes nor the file system of Fig. 4. With NOVA, which writes a whole block of 4 KB for 1 KB, readers gain and all mixes with writes lose.",
        of: &[(Paper::NThread, "4", "moved / stayed", ""), (Paper::NThread, "4", "ordering", "with 1 KB blocks")],
    },
    Cause {
        tag: Tag::NotStated,
        why: "How DRAM stands in for NVMM, and how the four sockets are linked, is not stated. Software costs measured on Optane dominate here.",
        of: &[(Paper::NThread, "7c", "", "")],
    },
    Cause {
        tag: Tag::NotStated,
        why: "The paper shows a picture without a number. Here the difference is within the margin.",
        of: &[
            (Paper::NThread, "6a", "ordering", "NThread"),
            (Paper::NThread, "8", "ordering", ""),
            (Paper::NThread, "5b", "ordering", "NThread_rl with 4 threads beats 8"),
        ],
    },
    Cause {
        tag: Tag::NotStated,
        why: "The thesis does not state how fast its machine copies memory. At NThread's speed 1 GB takes 0.8 s, a sixth of the run with a file of 1 GB.",
        of: &[(Paper::Arc, "8.5", "", "")],
    },
    Cause {
        tag: Tag::NotStated,
        why: "NThread's step 3 does not look at CPUs (Eq. 4). At rw80 it sends eight writers to the four CPUs of node 1, where they are no contention any more, and they come back. The paper does not say what stops them.",
        of: &[
            (Paper::NThread, "5b", "ordering", "NThread and NThread_cpu beat NOVA_n"),
            (Paper::NThread, "5b", "NThread / NOVA_n", ""),
        ],
    },
    Cause {
        tag: Tag::Lacking,
        why: "A read costs the same software on every file system here. In the paper the file systems differ when they only read.",
        of: &[
            (Paper::NThread, "2", "", ""),
            (Paper::NThread, "7a", "NThread / ext4-dax", "R"),
            (Paper::NThread, "7a", "ordering", "NOVA beats"),
            (Paper::NThread, "7a", "ordering", "PMFS beats ext4-dax for RW"),
            (Paper::NThread, "7b", "ordering", "NOVA beats PMFS"),
        ],
    },
    Cause {
        tag: Tag::Lacking,
        why: "Two applications share something beyond the machine that the paper does not name. By its ratios NOVA does 1.4 times as much with two applications as with one, here nearly twice.",
        of: &[(Paper::NThread, "6b", "", ""), (Paper::NThread, "7b", "", "")],
    },
    Cause {
        tag: Tag::Lacking,
        why: "Something holds back RocksDB's readers beside its writer: in the paper NThread gains less for RW than for R.",
        of: &[
            (Paper::NThread, "7a", "NThread / PMFS", "RW"),
            (Paper::NThread, "7a", "NThread / NOVA", "RW"),
            (Paper::NThread, "7a", "NThread / NOVA", "average"),
        ],
    },
    Cause {
        tag: Tag::NotStated,
        why: "The paper does not say what webserver's threads share. filebench picks one of 100,000 files at random, so that hardly two of 100 threads have the same one at a time.",
        of: &[(Paper::NThread, "Table II", "ordering", "keeping sharers together helps webserver")],
    },
    Cause {
        tag: Tag::Lacking,
        why: "In the paper 28 threads of webserver read 20.7 GB/s (TH_l), here 16.1: they hardly ever share a file, and OPTANE_READ_S was chosen when they always did.",
        of: &[
            (Paper::Dragonfly, "2", "Webserver (Node0)", "case A"),
            (Paper::Dragonfly, "2", "Webserver (Node1)", "case B"),
            (Paper::Dragonfly, "MTP", "", ""),
            (Paper::Dragonfly, "6a", "Dragonfly / NThread", ""),
            (Paper::Dragonfly, "6c", "", ""),
        ],
    },
    Cause {
        tag: Tag::Lacking,
        why: "28 remote readers cost the local ones more than 28 local readers do, in the paper. Here a remote byte takes 1.53 times as much of the controller (NThread I), and the rest of its delay is the remote reader's own.",
        of: &[(Paper::Dragonfly, "2", "", "")],
    },
    Cause {
        tag: Tag::Lacking,
        why: "The model has one cost for a hop, chosen on blocks of 4 KiB. In the paper large blocks gain less than small ones, here more.",
        of: &[(Paper::NPolicy, "3a", "N-Policy / before", "2 MiB read")],
    },
    Cause {
        tag: Tag::Lacking,
        why: "A byte from the other node costs the same in a small read as in a large one here. The thesis does not know why it does not there (9.1.1).",
        of: &[(Paper::Arc, "8.6", "", "")],
    },
    Cause {
        tag: Tag::Lacking,
        why: "15 % less time for a read is 18 % more bandwidth. The model has no cost of fio's own between two reads.",
        of: &[(Paper::Arc, "8.3", "", "")],
    },
    Cause {
        tag: Tag::Unknown,
        why: "Four writers need more than one module gives here, which costs ext4-dax and spares NOVA_n with its two modules. In the paper they do not.",
        of: &[(Paper::NThread, "5a", "NThread_rl / ext4-dax", ""), (Paper::NThread, "5a", "NThread_rl / NOVA_n", "")],
    },
    Cause {
        tag: Tag::Unknown,
        why: "NThread moves threads to their data here, and they do less there than where the kernel put them.",
        of: &[(Paper::Dragonfly, "6b", "", "")],
    },
    Cause {
        tag: Tag::Unknown,
        why: "Eight readers that share four CPUs lose more than in the paper, and PMFS loses less against ext4-dax.",
        of: &[
            (Paper::NThread, "5b", "NThread / NThread_rl", ""),
            (Paper::NThread, "5b", "ordering", "ext4-dax beats PMFS"),
        ],
    },
    Cause {
        tag: Tag::Unknown,
        why: "NOVA_n gains as much by its second module as it loses by distance; in the paper it gains less.",
        of: &[
            (Paper::NThread, "7a", "NThread / NOVA_n", ""),
            (Paper::NThread, "7a", "ordering", "NThread beats NOVA_n for R"),
        ],
    },
];

impl Cause {
    pub(super) fn is_of(&self, paper: Paper, figure: &str, series: &str, point: &str) -> bool {
        self.of
            .iter()
            .any(|of| of.0 == paper && of.1 == figure && (of.2.is_empty() || of.2 == series) && point.starts_with(of.3))
    }
}

/// The cause of a miss.
pub(super) fn of(paper: Paper, figure: &str, series: &str, point: &str) -> Option<&'static Cause> {
    CAUSES.iter().find(|c| c.is_of(paper, figure, series, point))
}
