# The session of the README. Each line is a command; make session records it again.
export GOVERBS_SOFT=auto
verbs devices
verbs pingpong >/dev/null &
verbs pingpong localhost
verbs doctor | tail -n 6
