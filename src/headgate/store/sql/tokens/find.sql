SELECT id, name, role FROM headgate.token WHERE hash = $1
