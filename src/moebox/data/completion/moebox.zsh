#compdef moebox
_moebox() {
    local -a found
    found=("${(@f)$(moebox --complete "${(@)words[2,$CURRENT]}" 2>/dev/null)}")
    if [[ -n "${found[1]}" ]]; then compadd -a found; else _files; fi
}
if [[ $funcstack[1] = _moebox ]]; then _moebox; else compdef _moebox moebox; fi
