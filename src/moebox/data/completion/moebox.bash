_moebox() {
    local IFS=$'\n'
    COMPREPLY=($(moebox --complete "${COMP_WORDS[@]:1:$COMP_CWORD}" 2>/dev/null))
}
complete -o default -o nosort -F _moebox moebox
