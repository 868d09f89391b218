# Sums up what test programs printed (Rust's own harness and libtest-mimic): skips with their reasons, failures, one closing line.
# A test that was skipped in one place and ran in another is not a skip.

/^ +Running |^ +Doc-tests / {
    program = $2 == "unittests" ? $3 $4 : $2
    sub(/^tests\//, "", program)
    sub(/\.rs$/, "", program)
    sub(/-[0-9a-f]+\)$/, "", program)
    sub(/^\(.*\//, "", program)
}

/^test .* \.\.\. / {
    name = program ": " $0
    sub(/: test +/, ": ", name)
    result = name
    sub(/ +\.\.\. .*/, "", name)
    sub(/.* \.\.\. /, "", result)
    if (result ~ /^ok/) { passed++; ran[name] = 1 }
    else if (result ~ /^FAILED/) { count++; failures[count] = name " (" FILENAME ")"; ran[name] = 1 }
    else if (result ~ /^ignored/) { sub(/^ignored,? */, "", result); skips[name] = result }
}

END {
    for (name in skips) {
        if (name in ran) continue
        skipped++
        printf "skipped: %s: %s\n", name, skips[name] == "" ? "no reason given" : skips[name]
    }
    for (i = 1; i <= count; i++) printf "failed: %s\n", failures[i]
    # A leg that failed without a failed test did not run to its end.
    if (failed != "" && count == 0) { printf "failed: %s did not run to the end\n", failed; count++ }
    if (passed == 0) { printf "failed: no test ran\n"; count++ }
    printf "%d passed, %d failed, %d skipped\n", passed, count, skipped
    exit count > 0
}
