# A home of the script's own, where programs keep what they like.
export HOME=$PWD
