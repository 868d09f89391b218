# Sums up what test programs printed (Rust's own harness and libtest-mimic): the slowest tests, skips with their reasons,
# failures, and one closing line. A test that was skipped in one place and ran in another is not a skip. A test that failed and
# passed when run again counts as passed and as unsteady.

# The last lines of each leg say why it did not run to its end.
$0 != "" { tail[FILENAME, ++length_of[FILENAME]] = substr($0, 1, 400) }

/^ +Running |^ +Doc-tests / {
    program = $2 == "unittests" ? $NF : $2
    sub(/^tests\//, "", program)
    sub(/(\/main)?\.rs$/, "", program)
    sub(/^.*\//, "", program)
    sub(/-[0-9a-f]+\)$/, "", program)
}

# What a failed test said: the first lines of its part of the list of failures, for the end, which is all that some logs keep.
/^---- .* ----$/ { said = program ": " $2 " (" FILENAME ")"; lines[said] = 0; next }
/^failures:$|^test result:/ { said = "" }
said != "" && $0 != "" && lines[said] < 3 { why[said] = why[said] "\n    " substr($0, 1, 400); lines[said]++ }

# The result of a test: behind its name, or alone on a line when the test itself printed something.
function took(result) {
    if (name == "") return
    if (again) { again = 0 }
    else if (result ~ /^ok/) { passed++; ran[name] = 1 }
    else if (result ~ /^FAILED/) { failures[++count] = name " (" FILENAME ")"; ran[name] = 1; bad[FILENAME]++ }
    else if (result ~ /^ignored/) { sub(/^ignored[, ]*/, "", result); gsub(/^\(|\)$/, "", result); skips[name] = result }
    else return
    if (match(result, /<[0-9.]+s>$/)) {
        times[++timed] = substr(result, RSTART + 1, RLENGTH - 3) + 0
        names[timed] = name " (" FILENAME ")"
    }
    name = ""
}

# A failed test that runs once more (tools/run-tests): its second result is in the line that begins with "again: ".
/ failed; again:$/ { again = 1 }
/^again: .*: ok$/ {
    second = $2
    sub(/:$/, "", second)
    for (i = 1; i <= count; i++) {
        if (failures[i] == program ": " second " (" FILENAME ")") {
            unsteady[++unsteadies] = failures[i] ": failed once, passed when run again"
            failures[i] = failures[count--]
            bad[FILENAME]--
            passed++
            break
        }
    }
}

/^machine stopped: / { sub(/,$/, "", $3); unsteady[++unsteadies] = $3 " (" FILENAME "): the machine stopped and was started again"; again = 0; name = "" }

/^test .* \.\.\. ?/ {
    name = $0
    sub(/^test +/, "", name)
    sub(/ +\.\.\. ?.*/, "", name)
    name = program ": " name
    result = $0
    sub(/.* \.\.\. ?/, "", result)
    took(result)
    next
}

/^(ok|FAILED)( <[0-9.]+s>)?$/ { took($0) }

END {
    for (i = 1; i <= 10 && i <= timed; i++) {
        slowest = i
        for (j = i + 1; j <= timed; j++) if (times[j] > times[slowest]) slowest = j
        printf "%s %6.1f s  %s\n", i == 1 ? "slowest:" : "        ", times[slowest], names[slowest]
        times[slowest] = times[i]
        names[slowest] = names[i]
    }
    for (name in skips) {
        if (name in ran) continue
        skipped++
        printf "skipped: %s: %s\n", name, skips[name] == "" ? "no reason given" : skips[name]
    }
    for (i = 1; i <= unsteadies; i++) printf "unsteady: %s\n", unsteady[i]
    for (i = 1; i <= count; i++) printf "failed: %s%s\n", failures[i], why[failures[i]]
    # A leg that failed without a failed test did not run to its end.
    legs = split(failed, leg, ",")
    for (i = 1; i <= legs; i++) {
        if (bad[leg[i]] > 0) continue
        printf "failed: %s did not run to the end; its last lines:\n", leg[i]
        last = length_of[leg[i]]
        for (j = last > 12 ? last - 11 : 1; j <= last; j++) printf "    %s\n", tail[leg[i], j]
        count++
    }
    if (passed == 0) { printf "failed: no test ran\n"; count++ }
    printf "%d passed, %d failed, %d skipped%s\n", passed, count, skipped, unsteadies ? ", " unsteadies " unsteady" : ""
    exit count > 0
}
