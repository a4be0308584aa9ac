DELETE FROM headgate.session WHERE hash = $1
