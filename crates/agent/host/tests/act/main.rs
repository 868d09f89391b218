//! Moves real threads of this machine and undoes the moves: inheritance, ended threads, refusals,
//! cpusets, crashes.
//!
//! A machine with one node is enough: the tests invent two nodes of one CPU each, which differ only
//! in the affinity that a move sets. A test that lacks something (two CPUs, root, control groups,
//! BPF) is ignored, with the reason.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test stops at the first surprise

mod basics;
mod claims;
mod cpusets;
mod crash;
mod failures;
mod forks;
#[path = "../../../act/tests/harness/mod.rs"]
mod harness;
mod jobs;
mod machine;
mod pages;
mod process;
mod whole;
mod world;

pub use harness::Tried;

fn main() {
    let roles: &[harness::Role] = &[
        ("threads", world::be_threads),
        ("daemon", crash::be_daemon),
        ("readers", whole::be_readers),
        ("nobody", basics::be_nobody),
        ("exec", claims::be_exec),
        ("ending", claims::be_ending),
        ("pinner", claims::be_pinner),
        ("spawner", process::be_spawner),
        ("deadline", process::be_deadline),
        ("binder", process::be_binder),
        ("late", process::be_late),
        ("owner", process::be_owner),
        ("starved", failures::be_starved),
        ("flickering", failures::be_flickering),
    ];
    let trial = |name: &str, test: fn() -> Tried| harness::trial(name, move || world::two_cpus().and_then(|_| test()));
    let mut tests = vec![
        trial("threads_are_moved_and_restored", basics::moved_and_put_back),
        trial("a_second_move_leads_back_to_the_first_affinity", basics::second_move),
        trial("own_affinities_are_pinned_and_untouched", basics::own_affinity),
        trial("own_affinities_are_moved_if_the_user_asks", basics::touch_own_affinity),
        trial("affinities_changed_by_others_are_kept", basics::changed_by_others),
        trial("exec_keeps_the_move", basics::exec),
        trial("ended_threads_and_reused_ids_are_recognised", basics::gone),
        trial("kernel_threads_are_refused", basics::kernel_thread),
        trial("homenode_does_not_move_itself", basics::itself),
        trial("eperm_is_reported", basics::eperm),
        trial("moves_of_files_without_a_known_path_are_refused", basics::not_a_thread),
        trial("targets_stay_inside_the_cpuset", cpusets::inside),
        trial("a_cpuset_may_change_under_a_move", cpusets::changes),
        trial("children_are_restored_at_the_end", forks::at_the_end),
        trial("children_are_restored_every_window_with_bpf", forks::every_window),
    ];
    // Forks are slow on the emulated CPUs of the oldest kernel's machine.
    if std::env::var("HOMENODE_LEG").as_deref() != Ok("oldest") {
        tests.extend([
            trial("restores_among_thousands_of_forks", forks::beside),
            trial("restores_among_thousands_of_forks_with_bpf", forks::beside_with_bpf),
        ]);
    }
    tests.extend([
        trial("the_end_of_a_worker_leaves_its_first_thread_bound", claims::end_of_a_worker_without_a_watcher),
        trial("exec_by_another_thread_is_restored_every_window", claims::exec_by_another_thread),
        trial("exec_by_another_thread_is_restored_at_the_end", claims::exec_by_another_thread_then_finish),
        trial("exec_by_another_thread_is_restored_after_a_crash", claims::exec_by_another_thread_after_a_crash),
        trial("an_exec_that_is_not_reported_yet_is_restored_at_the_end", claims::exec_in_flight_at_the_end),
        trial(
            "exec_after_the_first_thread_was_moved_elsewhere_is_restored_after_a_crash",
            claims::exec_after_the_first_was_moved_elsewhere,
        ),
        trial("a_child_is_restored_once", claims::put_back_once),
        trial("an_affinity_set_by_the_program_is_its_own_even_if_it_equals_ours", claims::own_value_that_equals_ours),
        trial(
            "an_affinity_seen_by_an_earlier_look_is_not_taken_for_the_present_one",
            claims::own_value_of_an_earlier_look,
        ),
        trial("a_child_whose_cpuset_was_narrowed_is_restored", cpusets::narrowed_child),
        trial("an_affinity_set_just_before_the_end_is_kept", claims::own_value_just_before_the_end),
        trial("an_affinity_set_by_a_sibling_of_a_moved_thread_is_its_own", claims::own_value_of_a_sibling),
        trial("a_narrow_mask_that_nobody_asked_for_is_the_default", claims::asked_for_nothing),
        trial("a_failed_look_at_a_thread_is_not_its_end", failures::starved),
        trial("a_failed_move_changes_nothing", failures::flickering),
        trial("a_process_is_bound_thread_by_thread", process::each_thread),
        trial("threads_born_while_a_process_is_bound_are_bound", process::born_meanwhile),
        trial("threads_that_a_moved_process_starts_later_stay_with_it", process::born_later),
        trial("killed_while_a_process_is_bound", process::killed_at_any_step),
        trial("processes_that_must_not_be_moved_are_refused", process::refusals),
        trial("a_process_of_another_user_can_be_moved_with_what_is_kept", process::another_users),
        trial(
            "a_thread_that_the_kernel_does_not_bind_is_left",
            process::a_thread_that_the_kernel_does_not_bind_is_left,
        ),
        trial("only_a_processs_own_memory_moves", process::only_its_own_memory),
        trial("exec_ends_a_move_of_memory", process::exec_ends_a_memory_move),
        trial(
            "a_node_that_takes_nothing_stops_no_other_on_the_way_back",
            process::a_node_that_takes_nothing_stops_no_other,
        ),
        trial("a_process_is_a_job_of_the_plane", jobs::process),
        trial("a_process_prepared_for_two_nodes_goes_where_its_start_says", jobs::prepared_twice),
        trial("a_file_is_a_job_of_the_plane_if_it_is_the_one_that_is_meant", jobs::file),
        trial("threads_bound_to_half_a_node_get_the_rest_when_it_comes_online", machine::cpus_come),
        trial("made_up_nodes_stay_when_cpus_come", machine::made_up_nodes),
        trial("the_affinity_of_a_machine_with_isolated_cpus_is_nobodys_own", machine::isolated),
        trial("no_thread_is_bound_beside_a_sched_ext_scheduler_that_came_later", machine::sched_ext),
        trial("readers_go_home_to_their_files", whole::readers_go_home),
        trial("file_moves_to_each_node_and_absent_pages_stay_absent", pages::every_node),
        trial("file_moves_leave_pages_in_a_pipe_and_count_them", pages::pinned),
        trial("file_moves_go_on_while_the_file_shrinks_and_grows", pages::shrinks_and_grows),
        trial("file_moves_end_when_the_file_loses_its_name", pages::deleted),
        trial("parts_of_a_file_move_and_go_back_page_by_page", pages::parts),
        trial("demotions_leave_what_other_processes_map", pages::mapped_elsewhere),
        trial("parts_of_a_file_that_is_cut_written_or_deleted_move_meanwhile", pages::parts_of_what_changes),
        trial("file_moves_end_when_the_node_is_full", pages::full),
        trial("file_moves_of_other_things_are_refused", pages::refused_files),
        trial("file_moves_by_strangers_are_refused", pages::strangers),
        trial("file_moves_to_nodes_without_memory_are_refused", pages::refused_nodes),
        trial("killed_and_recovered", crash::killed_and_recovered),
        trial("killed_and_started_again", crash::killed_and_started_again),
    ]);
    harness::run(roles, tests);
}
