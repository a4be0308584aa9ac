DELETE FROM headgate.removal WHERE datasource = $1 AND version = $2 AND stream = ANY ($3::uuid[])
