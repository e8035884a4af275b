# Requests other than evals. Part of driver.sh; the request is in __replctl_head and __replctl_body.

# Change to a directory (first in the body, unless empty) and set the environment that follows.
__replctl_assign() {
    builtin local __replctl_pair __replctl_error=''
    for __replctl_pair in "${__replctl_body[@]:1}"; do
        builtin export "$__replctl_pair" || __replctl_error="${__replctl_pair%%=*}: cannot be set"
    done
    if [[ ${__replctl_body[0]} ]] && ! builtin cd -- "${__replctl_body[0]}"; then
        __replctl_error="${__replctl_body[0]}: Permission denied"
        if [[ ! -d ${__replctl_body[0]} ]]; then __replctl_error="${__replctl_body[0]}: Not a directory"; fi
        if [[ ! -e ${__replctl_body[0]} ]]; then __replctl_error="${__replctl_body[0]}: No such file or directory"; fi
    fi
    "__replctl_state"
    "__replctl_say" answer "$__replctl_error" "$(builtin set +o)" "$(builtin shopt -p)"
}

__replctl_ping() {
    "__replctl_say" answer
}

# Unset the names in the body: `v` variables, `f` functions; and all aliases.
__replctl_clear() {
    builtin local __replctl_each
    for __replctl_each in "${__replctl_body[@]}"; do
        builtin unset "-${__replctl_each:0:1}" "${__replctl_each:1}"
    done
    builtin unalias -a
    "__replctl_state"
    "__replctl_say" answer
}

# For each `action type` of the body, list completions of the name in the head.
__replctl_complete() {
    builtin local __replctl_each
    builtin local -a __replctl_words __replctl_answer
    for __replctl_each in "${__replctl_body[@]}"; do
        builtin mapfile -n "${__replctl_head[1]}" -t __replctl_words \
            < <(builtin compgen -A "$__replctl_each" -- "${__replctl_head[2]}")
        __replctl_answer+=("$(builtin printf '%s\n' "${__replctl_words[@]}")")
    done
    "__replctl_say" answer "${__replctl_answer[@]}"
}

# Look up a name: its kind, a text, and for a function the file and line.
__replctl_lookup() {
    builtin local __replctl_name=${__replctl_head[2]} __replctl_kind __replctl_text='' __replctl_place=''
    __replctl_kind=$(builtin type -t -- "$__replctl_name")
    case $__replctl_kind in
        alias) __replctl_text=${BASH_ALIASES[$__replctl_name]} ;;
        function)
            __replctl_text=$(builtin declare -f -- "$__replctl_name")
            __replctl_place=$(builtin shopt -s extdebug && builtin declare -F -- "$__replctl_name")
            ;;
        builtin | keyword) __replctl_text=$(builtin help -- "$__replctl_name") ;;
        file) __replctl_place=$(builtin type -P -- "$__replctl_name") ;;
        *)
            if [[ $__replctl_name =~ ^[a-zA-Z_][a-zA-Z_0-9]*$ ]]; then
                __replctl_text=$(builtin declare -p -- "$__replctl_name")
                if [[ $__replctl_text ]]; then __replctl_kind=variable; fi
            fi
            ;;
    esac
    "__replctl_say" answer "$__replctl_kind" "${__replctl_text:0:16384}" "${__replctl_place:0:4096}"
}

# Send definitions of variables (`v`) and functions (`f`), and other state of the shell, in at most as
# many bytes as given in the head.
__replctl_dump() {
    builtin local __replctl_each __replctl_size=0
    builtin local -a __replctl_v __replctl_f __replctl_parts
    for __replctl_each in "${__replctl_body[@]}"; do
        if [[ $__replctl_each == v* ]]; then __replctl_v+=("${__replctl_each:1}"); else __replctl_f+=("${__replctl_each:1}"); fi
    done
    __replctl_parts=(
        "$(if ((${#__replctl_v[@]})); then builtin declare -p -- "${__replctl_v[@]}"; fi)"
        "$(if ((${#__replctl_f[@]})); then builtin declare -f -- "${__replctl_f[@]}"; fi)"
        "$(if ((${#__replctl_f[@]})); then builtin declare -F | while builtin read -r __replctl_each; do
            if [[ $__replctl_each =~ ^'declare -f'[a-z]*x ]]; then builtin printf '%s\n' "${__replctl_each##* }"; fi; done; fi)"
        "$(builtin alias -p)"
        "$(builtin trap -p)"
        "$(builtin umask)"
        "${PWD@Q}"
        "$(builtin jobs -p)"
        "$(__replctl_open)"
        "$(builtin set +o)"
        "$(builtin shopt -p)"
    )
    for __replctl_each in "${__replctl_parts[@]}"; do __replctl_size=$((__replctl_size + ${#__replctl_each})); done
    if ((__replctl_size > __replctl_head[1])); then
        "__replctl_say" answer "$__replctl_size"
    else
        "__replctl_say" answer '' "${__replctl_parts[@]}"
    fi
}

# Descriptors opened by user code.
__replctl_open() {
    builtin local __replctl_fd
    for ((__replctl_fd = 3; __replctl_fd < 243; ++__replctl_fd)); do
        if [[ -e /dev/fd/$__replctl_fd ]]; then builtin printf '%s\n' "$__replctl_fd"; fi
    done
}
builtin readonly -f __replctl_open
