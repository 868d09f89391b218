//! Acting on real threads of this machine: moved, undone, inherited, ended, refused, limited by cpusets, after a crash.
//!
//! A machine of one node will do: two nodes of one CPU each are made up, so that an affinity is all that tells them apart.
//! What a test needs and does not find (two CPUs, root, control groups, BPF) makes it "ignored", with the reason.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test stops at the first surprise

mod basics;
mod claims;
mod cpusets;
mod crash;
mod failures;
mod forks;
mod whole;
mod world;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

/// What a test comes to: done, or not possible here for this reason.
pub type Tried = Result<(), String>;

fn trial(name: &str, test: fn() -> Tried) -> Trial {
    let run = move || -> Result<Completion, Failed> {
        match world::two_cpus().and_then(|_| test()) {
            Ok(()) => Ok(Completion::Completed),
            Err(why) => Ok(Completion::ignored_with(why)),
        }
    };
    Trial::ignorable_test(name, run)
}

fn main() {
    // The same program serves as what is moved and as what is killed.
    let args: Vec<String> = std::env::args().collect();
    if let [_, flag, role, rest @ ..] = args.as_slice()
        && flag == "--role"
    {
        return match role.as_str() {
            "threads" => world::be_threads(rest),
            "daemon" => crash::be_daemon(rest),
            "readers" => whole::be_readers(rest),
            "nobody" => basics::be_nobody(rest),
            "exec" => claims::be_exec(rest),
            "starved" => failures::be_starved(rest),
            "flickering" => failures::be_flickering(rest),
            other => panic!("no role {other}"),
        };
    }
    let tests = vec![
        trial("moved_and_put_back", basics::moved_and_put_back),
        trial("a_second_move_leads_back_to_the_first_affinity", basics::second_move),
        trial("own_affinities_are_held_and_untouched", basics::own_affinity),
        trial("own_affinities_are_touched_if_the_user_says_so", basics::touch_own_affinity),
        trial("what_others_change_is_theirs", basics::changed_by_others),
        trial("exec_keeps_it_ours", basics::exec),
        trial("ended_threads_and_reused_ids_are_facts", basics::gone),
        trial("kernel_threads_are_refused", basics::kernel_thread),
        trial("homenode_does_not_move_itself", basics::itself),
        trial("eperm_is_a_fact", basics::eperm),
        trial("what_is_not_a_thread_is_refused", basics::not_a_thread),
        trial("targets_stay_inside_the_cpuset", cpusets::inside),
        trial("a_cpuset_that_changes_under_a_move", cpusets::changes),
        trial("children_are_put_back_at_the_end", forks::at_the_end),
        trial("children_are_put_back_every_window_with_bpf", forks::every_window),
        trial("thousands_of_forks_beside_it", forks::beside),
        trial("thousands_of_forks_beside_it_with_bpf", forks::beside_with_bpf),
        trial("exec_by_another_thread_is_put_back_every_window", claims::exec_by_another_thread),
        trial("exec_by_another_thread_is_put_back_at_the_end", claims::exec_by_another_thread_then_finish),
        trial("exec_by_another_thread_is_put_back_after_a_crash", claims::exec_by_another_thread_after_a_crash),
        trial("a_child_is_put_back_once", claims::put_back_once),
        trial("an_affinity_set_by_the_program_is_its_own_even_if_it_equals_ours", claims::own_value_that_equals_ours),
        trial("an_affinity_set_just_before_the_end_is_kept", claims::own_value_just_before_the_end),
        trial("a_narrow_mask_that_nobody_asked_for_is_the_default", claims::asked_for_nothing),
        trial("no_file_descriptors_are_not_ended_threads", failures::starved),
        trial("a_move_that_fails_has_changed_nothing", failures::flickering),
        trial("readers_go_home_to_their_files", whole::readers_go_home),
        trial("killed_and_recovered", crash::killed_and_recovered),
        trial("killed_and_started_again", crash::killed_and_started_again),
    ];
    libtest_mimic::run(&Arguments::from_args(), tests).exit();
}
