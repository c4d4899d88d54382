"""The scripts that shells read at their start. They ask `callboard completion` what to propose."""

from __future__ import annotations

BASH = """\
_callboard_completion() {
    local proposed
    COMPREPLY=()
    while IFS= read -r proposed; do
        COMPREPLY+=("$proposed")
    done < <(callboard completion --line "${COMP_LINE:0:COMP_POINT}" --breaks "$COMP_WORDBREAKS" 2>/dev/null)
}
complete -o default -F _callboard_completion callboard
"""

ZSH = """\
#compdef callboard
_callboard() {
    local -a proposed
    proposed=("${(@f)$(callboard completion --words "${(@)words[1,CURRENT]}" 2>/dev/null)}")
    if [[ -n "$proposed[1]" ]]; then
        compadd -- "${proposed[@]}"
    else
        _files
    fi
}
if [[ "$funcstack[1]" == "_callboard" ]]; then
    _callboard "$@"
else
    compdef _callboard callboard
fi
"""

FISH = """\
function __callboard_completion
    set -l word (commandline -ct)
    set -l proposed (callboard completion --words (commandline -opc) "$word" 2>/dev/null)
    if test (count $proposed) -gt 0
        printf '%s\\n' $proposed
    else
        __fish_complete_path "$word"
    end
end
complete -c callboard -f -a '(__callboard_completion)'
"""

SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
"""The script by the name of its shell."""
