# Bash driver of a session: `bash --norc --noprofile -p driver.sh CONTROL_FD BACKGROUND_FD`, Bash 4.4 or newer.
#
# It becomes an interactive Bash without a terminal: only that returns reliably to its top level after
# SIGINT, `${x:?}` and `set -u`. PROMPT_COMMAND is the main loop, one eval per prompt, and the parser gets an
# empty line. If it ever does not, it reaches the end of its input, and the session ends instead of hanging.
#
# Descriptors between evals: 0 that line, 1 and 2 /dev/null; 247 and 248 the user's stdout and stderr, 250 the user's
# stdin, 251 /dev/null, 252 the control channel, 249 a pipe for lists of names that nobody waits at. During an eval all
# six are /dev/null: the real ones are kept above 252, close-on-exec, so that no command inherits them. The messages on 252
# and 249 are described in messages.py.

if [[ $- != *i* ]]; then
    __replctl_control=$1 __replctl_late=$2
    exec 247>&1 248>&2 249>&5 250<&0 251</dev/null 252<&"$1" || exit 70
    exec {__replctl_control}<&- {__replctl_late}>&- 5>&- 6>&- <<<'' >/dev/null 2>&1
    PROMPT_COMMAND=". ${BASH_SOURCE[0]@Q}" exec "$BASH" --norc --noprofile --noediting -i +H +o history
fi

# --- the loop; no function here may fail or print anything visible to the user ---

# Wait for the next eval and store it in __replctl_code; answer all other requests.
__replctl_next() {
    __replctl_left=$? __replctl_code=''
    "__replctl_sane" || builtin return 70
    # A child interrupted before its exec gets here too.
    if [[ $BASHPID != "$$" ]]; then builtin exit 130; fi
    builtin local - && builtin set +aekuvxCET && builtin local FUNCNEST=0
    builtin printf '' >&247 # flush output of the user left in Bash's buffer by an interrupt
    command exec <<<''
    if [[ -e /dev/fd/245 ]]; then command exec 247>&245 245>&-; fi # the last eval's redirected stdout
    if [[ -e /dev/fd/246 ]]; then command exec 248>&246 246>&-; fi # and stderr
    __replctl_in=251 __replctl_status=''
    if [[ ${TMOUT:-} ]]; then # a shell at its prompt exits on timeout, and this prompt's clock is already running
        __replctl_tmout=$TMOUT TMOUT=''
        builtin return 0
    fi
    if [[ ${__replctl_running-eval} ]]; then # the last eval was aborted
        __replctl_last=$__replctl_left
        if [[ ${__replctl_why:-} ]]; then __replctl_last=$__replctl_ended; fi
        "__replctl_state"
        builtin jobs
        __replctl_running=''
    fi
    while [[ 1 ]]; do
        __replctl_token="$$.$((++__replctl_turn)).${EPOCHREALTIME-}"
        "__replctl_say" idle "$__replctl_token" "${__replctl_why:-}" "${__replctl_last:-0}"
        __replctl_why=''
        "__replctl_take"
        case ${__replctl_head[0]} in
            eval) if "__replctl_begin"; then builtin return 0; fi ;;
            restore)
                __replctl_running=restore __replctl_code="{ ${__replctl_body[0]}"$'\n'"} >/dev/null 2>&1"
                builtin return 0
                ;;
            assign | clear | complete | lookup | dump | ping) "__replctl_${__replctl_head[0]}" ;;
            *) builtin exit 70 ;;
        esac
    done
}

# Report the result of the code from __replctl_next.
__replctl_done() {
    __replctl_left=$? __replctl_code=''
    "__replctl_sane" || builtin return 70
    if [[ ${__replctl_traps:-} && $- == *E* ]]; then "__replctl_watch"; fi # not visible from here without errtrace
    builtin local - && builtin set +aekuvxCET && builtin local FUNCNEST=0
    if [[ -z ${__replctl_running-eval} ]]; then builtin return 0; fi # the code may have unset everything
    "__replctl_state"
    if [[ ${__replctl_running-} == restore ]]; then
        "__replctl_say" answer
    else
        __replctl_last=${__replctl_status:-$__replctl_left}
        "__replctl_say" result "$__replctl_last"
    fi
    __replctl_running='' __replctl_why=''
    builtin jobs # discarded: reaps finished jobs, so that they are not reported to the next eval
    if [[ ${TMOUT:-} ]]; then __replctl_tmout=$TMOUT TMOUT=''; fi
}

# Ensure that `builtin` and `command` are the builtins: functions of these names are unset. In posix mode, which an
# assignment alone enables, `unset` cannot be a function.
__replctl_sane() {
    __replctl_ok=''
    builtin eval '__replctl_ok+=1' && command eval '__replctl_ok+=1'
    if [[ $__replctl_ok != 11 ]]; then
        __replctl_ok=''
        if [[ -o posix ]]; then
            unset -f builtin command
        else
            POSIXLY_CORRECT=1
            unset -f builtin command unset
            unset -v POSIXLY_CORRECT
        fi
        builtin eval '__replctl_ok+=1' && command eval '__replctl_ok+=1'
    fi
    [[ $__replctl_ok == 11 ]]
}

# Set `$?` at the start of an eval to the status of the previous one.
__replctl_before() {
    builtin return "${__replctl_last:-0}"
}

# Put after `&&`: the command before it may fail, even under `set -e`, and its status stays. A word and not
# `[[ 1 ]]`, because an unclosed `[[` in an eval of the user's makes bash misread the next one.
__replctl_fine() {
    [[ 1 ]]
}

# --- messages ---

# A tag, fields, an end. The empty field first ends a message truncated by an interrupt.
__replctl_say() {
    builtin local __replctl_fields
    builtin printf -v __replctl_fields '%*s' "$(($# - 1))" ''
    builtin printf "\\0!%s\\0${__replctl_fields// /.%s\\0}=\\0" "$@" >&252
}

# Read a request: __replctl_head (op, argument, name, size) and __replctl_body. Data is never split or evaluated.
__replctl_take() {
    builtin local LC_ALL=C # sizes are bytes
    until [[ ${__replctl_head[0]-} == "$__replctl_token" ]]; do # before it: the rest of a truncated request
        builtin mapfile -d '' -n 1 -t -u 252 __replctl_head
        if ((${#__replctl_head[@]} == 0)); then builtin exit 0; fi
    done
    builtin mapfile -d '' -n 4 -t -u 252 __replctl_head
    if ((${#__replctl_head[@]} < 4)); then builtin exit 0; fi
    __replctl_body=()
    if [[ ${__replctl_head[3]} == 0 ]]; then builtin return 0; fi
    if [[ ${__replctl_head[0]} == eval || ${__replctl_head[0]} == restore ]]; then
        builtin read -r -N "${__replctl_head[3]}" -u 252 '__replctl_body[0]' || builtin exit 0
        if ((${#__replctl_body[0]} != __replctl_head[3])); then builtin exit 70; fi
    else
        builtin mapfile -d '' -n "${__replctl_head[3]}" -t -u 252 __replctl_body
    fi
}

# Send all names; the worker compares them. Bash writes line by line, and on 252 each line would wake the worker.
__replctl_state() {
    if ! "__replctl_names" >&249; then "__replctl_names" >&252; fi # the pipe is full
}

__replctl_names() {
    builtin printf '\0!state\0.' || builtin return 1
    if [[ ${__replctl_values-} != names ]]; then
        builtin declare -p || builtin return 1
    else
        builtin compgen -v || builtin return 1
    fi
    builtin printf '\0.' || builtin return 1
    builtin compgen -A function -X '__replctl_*' # false if there is none
    builtin printf '\0=\0'
}

# --- evals ---

# Prepare the code in __replctl_body; false, after an error reply, if it cannot be parsed.
__replctl_begin() {
    "__replctl_say" begun
    __replctl_values=${__replctl_head[1]#*,} __replctl_traps=''
    if ! "__replctl_parses" "${__replctl_body[0]-}" && ! "__replctl_parses_extglob" "${__replctl_body[0]-}"; then
        "__replctl_say" syntax "$("__replctl_complaint" "${__replctl_head[2]}" "${__replctl_body[0]-}")"
        builtin eval '[[ 1 ]]' # absorbs the state of an unclosed `[[`
        __replctl_last=2
        builtin return 1
    fi
    if [[ ${__replctl_head[1]} == 1,* ]]; then __replctl_in=250; fi
    if [[ ${__replctl_body[0]-} == *ERR* ]]; then __replctl_traps=1; fi
    if [[ ${__replctl_tmout:-} ]]; then TMOUT=$__replctl_tmout __replctl_tmout=''; fi
    BASH_ARGV0=${__replctl_head[2]}
    __replctl_running=eval __replctl_urge=''
    # Wrap the code, in groups so that neither `set -x` nor a DEBUG trap is visible: start of its lines, and `$?` as
    # the last eval left it; then its status, and the current stdout and stderr.
    __replctl_code='{ __replctl_line=$LINENO; "__replctl_before" && "__replctl_fine"; } >/dev/null 2>&1'
    __replctl_code+=$'\n'"${__replctl_body[0]-}"$'\n''{ __replctl_status=$?; } >/dev/null 2>&1'
    __replctl_code+=$'\n''{ \command exec 245>&243; \command exec 246>&244; } 243>&1 244>&2 >/dev/null 2>&1'
}

# Check whether code is complete. It is parsed, and never runs, as the second command of a list whose first one
# returns. Code that closes the surrounding construct is an error in at least one of the two constructs.
__replctl_parses() {
    "__replctl_within" "{ \\: ; $1"$'\n'"}"
    (($? == 77)) || builtin return 1
    "__replctl_within" "if \\: ; then \\: ; $1"$'\n'"fi"
    (($? == 77))
}

# Check whether code is complete after it enables extglob, which changes how later lines parse.
__replctl_parses_extglob() {
    if [[ $1 != *extglob* ]] || builtin shopt -q extglob; then builtin return 1; fi
    builtin shopt -s extglob
    "__replctl_parses" "$1"
    builtin local __replctl_whole=$?
    builtin shopt -u extglob
    builtin return "$__replctl_whole"
}

__replctl_within() {
    builtin eval "\\builtin return 77; $1"
}

# Report Bash's error for code it cannot parse. A new Bash reads it without running it, for correct line numbers.
__replctl_complaint() {
    builtin local -a __replctl_options
    builtin local __replctl_text
    if [[ -o posix ]]; then __replctl_options+=(--posix); fi
    if builtin shopt -q extglob; then __replctl_options+=(-O extglob); fi
    __replctl_text=$(builtin exec -a "$1" "$BASH" --norc --noprofile "${__replctl_options[@]}" -pn 2>&1 <<<"${2%$'\n'}")
    builtin printf '%s' "${__replctl_text:0:16384}"
}

# The ERR trap, inherited by functions with errtrace: `if "__replctl_heard"; then "__replctl_failed"; fi`. Under
# `set -e` the shell would exit after it: the eval ends instead.
__replctl_heard() {
    __replctl_kept=$?
    __replctl_fired=1
    [[ -z ${__replctl_probing:-} ]]
}

__replctl_failed() {
    if [[ $BASHPID == "$$" && ($- == *e* || ${__replctl_urge:-}) ]]; then
        __replctl_ended=$__replctl_kept
        if [[ -z ${__replctl_urge:-} ]]; then __replctl_why=errexit; fi
        __replctl_urge=''
        builtin kill -INT "$$"
    fi
}

# The status for a user's own ERR trap, which runs between the two above.
__replctl_keep() {
    builtin return "$__replctl_kept"
}

# Install the above in the ERR trap (again).
__replctl_watch() {
    builtin local __replctl_trap
    __replctl_trap=$(builtin trap -p ERR)
    if [[ $__replctl_trap == *__replctl_heard* ]]; then builtin return 0; fi
    if [[ $__replctl_trap ]]; then
        builtin eval "__replctl_trap=(${__replctl_trap})" # trap -- 'command' ERR, as quoted by Bash
        __replctl_trap='"__replctl_keep" && "__replctl_fine"; '"${__replctl_trap[2]}"$'\n'
    fi
    builtin trap -- "if \"__replctl_heard\"; then ${__replctl_trap}\"__replctl_failed\"; fi" ERR
}

# The worker sends SIGURG with an interrupt, because Bash continues after a command that survived SIGINT.
# Leaving two traps at once would disable the outer one, so a running ERR trap is told to do the rest.
__replctl_urged() {
    if [[ -z ${__replctl_running-eval} || $BASHPID != "$$" ]]; then builtin return 0; fi
    builtin local -
    builtin set +eux -E
    __replctl_probing=1 __replctl_fired=''
    builtin false
    __replctl_probing=''
    if [[ $__replctl_fired || $(builtin trap -p ERR) != *__replctl_heard* ]]; then
        builtin kill -INT "$$"
    else
        __replctl_urge=1
    fi
}

# --- commands for user code ---

# End the eval, not the session; in a subshell, really exit. With a trap on INT the only way is
# the real exit as well.
exit() {
    __replctl_ended=$?
    if [[ $BASHPID == "$$" && $# -le 1 ]]; then
        if [[ ${1-$__replctl_ended} =~ ^[+-]?[0-9]{1,9}$ ]]; then
            __replctl_ended=${1-$__replctl_ended}
            __replctl_ended=$((${__replctl_ended//[0-9]/}10#${__replctl_ended#[+-]} & 255))
        else
            builtin printf '%s: exit: %s: numeric argument required\n' "$0" "$1" >&2
            __replctl_ended=2
        fi
        __replctl_why=exit
        builtin kill -INT "$$"
    fi
    builtin exit "${@-$__replctl_ended}"
}

# Report waiting for input when it reads the session's stdin and nothing is available.
read() {
    if [[ ${__replctl_in-} == 250 && -p /dev/fd/0 && " $*" != *' -u'* ]] && ! builtin read -t 0; then "__replctl_need"; fi
    builtin read "$@"
}

# Set __replctl_inode to the inode of a descriptor, to nothing before Linux 5.14, without another process.
__replctl_inode_of() {
    builtin local __replctl_key __replctl_rest
    __replctl_inode=''
    while IFS=$' \t' builtin read -r __replctl_key __replctl_rest; do
        if [[ $__replctl_key == ino: ]]; then __replctl_inode=$__replctl_rest; fi
    done <"/proc/self/fdinfo/$1"
}

__replctl_need() {
    builtin local __replctl_fd __replctl_control='' __replctl_stdin='' __replctl_inode
    # Descriptors saved by Bash during the eval: above 252, or from 10 on where the limit of open files is 256.
    for __replctl_fd in {253..279} {10..59}; do
        if [[ /dev/fd/0 -ef /dev/fd/$__replctl_fd ]]; then __replctl_stdin=1; fi
        if [[ -z $__replctl_control && -S /dev/fd/$__replctl_fd ]]; then
            "__replctl_inode_of" "$__replctl_fd" # the user's own sockets are as low
            if [[ $__replctl_inode == "$__replctl_socket" ]]; then __replctl_control=$__replctl_fd; fi
        fi
    done
    if [[ $__replctl_control && $__replctl_stdin ]]; then builtin printf '\0!need\0=\0' >&"$__replctl_control"; fi
}

# An interactive Bash omits line numbers from messages; in functions it counts from the function's first line.
command_not_found_handle() {
    builtin local __replctl_at=${BASH_LINENO[0]}
    if ((${#FUNCNAME[@]} == 1)); then __replctl_at=$((__replctl_at - __replctl_line)); fi
    builtin printf '%s: line %s: %s: command not found\n' "${FUNCNAME[1]:-$0}" "$__replctl_at" "$1" >&2
    builtin return 127
}

. "${BASH_SOURCE[0]%/*}/requests.sh"

# --- startup ---

builtin shopt -s execfail
builtin shopt -u checkwinsize
builtin set -E
builtin trap -- 'if "__replctl_heard"; then "__replctl_failed"; fi' ERR
builtin trap -- '"__replctl_urged"' URG
builtin unset PS1 PS2 HISTFILE MAILCHECK __replctl_control __replctl_late
builtin declare +x PROMPT_COMMAND
# Keywords and quoted names only, so that no user alias or function applies.
PROMPT_COMMAND='"__replctl_next" && "__replctl_fine"; \builtin eval "$__replctl_code" <&"$__replctl_in" >&247 2>&248 252>&251 250<&251 249>&251 247>&251 248>&251
"__replctl_done" && "__replctl_fine"'
builtin readonly PROMPT_COMMAND BASHPID
builtin readonly -f __replctl_{next,done,sane,before,fine,say,take,state,names,begin,parses,parses_extglob,within,complaint,heard,failed,keep,watch,urged}
builtin readonly -f __replctl_{need,inode_of,assign,clear,complete,lookup,dump,ping}
command exec <<<''
"__replctl_inode_of" 252
__replctl_socket=$__replctl_inode
__replctl_running=''
"__replctl_state"
"__replctl_say" ready "${BASH_VERSINFO[0]}.${BASH_VERSINFO[1]}.${BASH_VERSINFO[2]}" "$BASH" "$$"
