# Completion for gossamerd, gossamerctl, gossamer-sim and gossamer-bench in bash. Subcommands and options are what the
# program's own --help lists, so there is nothing here to fall behind.
_gossamer() {
  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} subcommands=() other help
  for other in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    if [[ $other == -- ]]; then  # behind it is another program's
      mapfile -t COMPREPLY < <(compgen -f -- "$word")
      return
    fi
    [[ $other == [a-z]* ]] && subcommands+=("$other")
  done
  case $previous in
    --config | --socket | --mean | --output | --state-dir | --state-directory | --daemon)
      mapfile -t COMPREPLY < <(compgen -f -- "$word")
      return
      ;;
  esac
  # Arguments are no subcommands: the last words are left off until the program understands.
  while ! help=$("$1" "${subcommands[@]}" --help 2>/dev/null) && ((${#subcommands[@]})); do
    unset 'subcommands[-1]'
  done
  mapfile -t COMPREPLY < <(compgen -W "$(sed -n '
    /^Options:/,/^$/ s/^  \(-[^ ]*\).*/\1/p
    /^Subcommands:/,/^$/ s/^  \([a-z][^ ]*\).*/\1/p' <<<"$help" | tr ',' '\n')" -- "$word")
}
complete -F _gossamer gossamerd gossamerctl gossamer-sim gossamer-bench
