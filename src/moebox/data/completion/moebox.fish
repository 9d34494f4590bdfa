complete -c moebox -f -a '(moebox --complete (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
