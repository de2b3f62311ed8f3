module fedzero.example/device

go 1.19
